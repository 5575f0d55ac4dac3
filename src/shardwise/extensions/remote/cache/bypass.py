"""Reads past the cache: when they happen, counted, and logged once.

Keeps I6: a disk that refuses anything costs speed, never a read.
"""

from __future__ import annotations

import logging
import os
import time

from shardwise.base.shown import shown
from shardwise.storage.counts import IO_COUNTS

_logger = logging.getLogger("shardwise")

# After the disk refused a write, write nothing for 30 s.
_PAUSE_S = 30.0


class Bypass:
    """The reason why a process reads past its cache."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = directory
        # When the disk is tried again, by `time.monotonic`.
        self.resume_at = 0.0
        self._is_warned = self._is_uncacheable_noted = False

    def note_disk(self, error: OSError) -> None:
        """Read past the cache for a while; warn once."""
        self.resume_at = time.monotonic() + _PAUSE_S
        IO_COUNTS.add(degraded=1)
        if self._is_warned:
            return
        self._is_warned = True
        _logger.warning(
            "the cache in %r can't be used (%s): what it lacks is read directly; make room on its "
            "disk, or give another directory",
            os.fspath(self._directory),
            error.strerror or error,
        )

    def note_uncacheable(self, url: str) -> None:
        """Count a read of a file without a version, which can't be cached; warn once."""
        IO_COUNTS.add(degraded=1)
        if not self._is_uncacheable_noted:
            self._is_uncacheable_noted = True
            _logger.warning(
                "%r is not cached: its store tells neither an ETag nor a time of change, so that a "
                "replaced file could not be told from this one",
                shown(url),
            )
