"""Blocks that a process has read from a cache, added to the cache's statistics now and then."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from shardwise.extensions.remote.cache.eviction import UsageFile
from shardwise.storage.counts import IO_COUNTS

# Worker processes end without a farewell: what they lose is the last second, or 4,096 hits.
_FLUSHED_HITS, _FLUSHED_S = 4096, 1.0
# Seconds that statistics may hold up the end of a program.
_HITS_TIMEOUT_S = 1.0


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
