"""What a process notes of a cache: hits, added to its statistics now and then, and reads past it.

Keeps I6: a disk that refuses anything costs speed, never a read.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress

from shardwise.base.shown import shown
from shardwise.extensions.remote.cache.eviction import UsageFile
from shardwise.storage.counts import IO_COUNTS

_logger = logging.getLogger("shardwise")

# After the disk refused a write, write nothing for 30 s.
_PAUSE_S = 30.0
# Worker processes end without a farewell: what they lose is the last second, or 4,096 hits.
_FLUSHED_HITS, _FLUSHED_S = 4096, 1.0
# Seconds that statistics may hold up the end of a program.
_HITS_TIMEOUT_S = 1.0


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


class Hits:
    """Blocks that this process has read from the cache in a folder, and not added to its file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._flushed_at = time.monotonic()
        self._count = 0

    def add(self, hits: int, num_bytes: int) -> None:
        """Count blocks that were read, and the bytes that their readers got."""
        IO_COUNTS.add(hits=hits, disk_bytes=num_bytes)
        self._count += hits
        if self._count >= _FLUSHED_HITS or time.monotonic() - self._flushed_at > _FLUSHED_S:
            self.flush()

    def take(self) -> int:
        """The hits, for a caller that adds them to the usage file."""
        count, self._count = self._count, 0
        self._flushed_at = time.monotonic()
        return count

    def flush(self) -> None:
        """Add the hits to the usage file; a forked child leaves its parent's alone."""
        if not self._count or self._pid != os.getpid():
            return
        hits, file = self.take(), UsageFile(self._folder, timeout_s=_HITS_TIMEOUT_S)
        with suppress(OSError), file.lock() as usage:  # statistics are not worth a warning
            usage.hits += hits
