"""Eviction: parts of dead processes are removed first, then the least recently used blocks.

Everything here runs under the lock of the usage file. Only files with names of this cache are
touched. A block that is being read is locked by its reader and skipped; an evicted block is
truncated before it is unlinked, so its space is free even where it is open.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from shardwise.storage.cache.block_format import BLOCK_NAME, space_of
from shardwise.storage.cache.usage import Usage

__all__ = ["PART_NAME", "CacheEntry", "Eviction", "remove_block", "scan", "sweep_parts"]

PART_NAME = re.compile(BLOCK_NAME.pattern + r"\.part")


class CacheEntry(NamedTuple):
    """A file of the cache: when it was used last, its name, the space that it takes."""

    used_ns: int
    name: str
    space: int


def scan(folder: str, pattern: re.Pattern[str]) -> Iterator[CacheEntry]:
    """The files of a folder whose names match."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield CacheEntry(status.st_atime_ns, entry.name, space_of(status.st_size))


class Eviction:
    """The least recently used blocks, in a heap that is rebuilt when it may be out of date.

    Args:
        blocks: the folder of the blocks.
        parts: the folder of the parts, which are being written.
    """

    def __init__(self, blocks: str, parts: str) -> None:
        self._blocks = blocks
        self._parts = parts
        self._heap: list[CacheEntry] = []
        # The heap lacks blocks that were published after this.
        self._scanned_ns = 0

    def count(self) -> int:
        """The disk space of all blocks and parts."""
        # Parts first: a part that becomes a block meanwhile is counted at least once.
        parts = {entry.name.removesuffix(".part"): entry for entry in scan(self._parts, PART_NAME)}
        blocks = list(scan(self._blocks, BLOCK_NAME))
        named = {entry.name for entry in blocks}
        inside = sum(entry.space for entry in blocks)
        return inside + sum(entry.space for name, entry in parts.items() if name not in named)

    def make_room(self, usage: Usage, space: int, limit: int) -> int:
        """Evict until `space` bytes are free below the limit; returns the number of blocks.

        Ends early where nothing more can be evicted: see `usage.num_bytes`.
        """
        evicted = 0
        is_fresh = False
        while usage.num_bytes + space > limit:
            # Stale: the heap's oldest was used after the scan, so a newer block may be older.
            is_stale = not is_fresh and self._heap and self._heap[0].used_ns > self._scanned_ns
            if not self._heap or is_stale:
                if is_fresh:
                    break
                self._rescan(usage)
                is_fresh = True
                continue
            entry = heapq.heappop(self._heap)
            used_ns = _used_ns(f"{self._blocks}/{entry.name}")
            if used_ns is None:
                continue
            if used_ns != entry.used_ns:
                # Used since the scan.
                heapq.heappush(self._heap, entry._replace(used_ns=used_ns))
                continue
            freed = remove_block(f"{self._blocks}/{entry.name}")
            usage.num_bytes -= freed
            evicted += bool(freed)
        usage.evictions += evicted
        return evicted

    def _rescan(self, usage: Usage) -> None:
        """Sweep, list all blocks, and correct the usage."""
        self._scanned_ns = time.time_ns()
        sweep_parts(self._parts, usage)
        self._heap = list(scan(self._blocks, BLOCK_NAME))
        heapq.heapify(self._heap)
        usage.num_bytes = self.count()


def sweep_parts(folder: str, usage: Usage) -> int:
    """Remove the parts of dead processes; returns their number."""
    swept = 0
    for entry in list(scan(folder, PART_NAME)):
        freed = remove_block(f"{folder}/{entry.name}")
        usage.num_bytes -= freed
        swept += bool(freed)
    return swept


def remove_block(path: str) -> int:
    """Remove a block or a part; returns its disk space, 0 if it stays.

    It stays while a reader or a writer locks it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        return 0  # gone, or another user's
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return 0
    try:
        status = os.fstat(fd)
        # A part may have become a block, and a block may have been replaced.
        if not status.st_nlink or not _is_at(path, status):
            return 0
        os.ftruncate(fd, 0)
        os.unlink(path)  # noqa: PTH108 - names are joined as text: a thousand a second
        return space_of(status.st_size)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        current = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) == (status.st_dev, status.st_ino)


def _used_ns(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_atime_ns  # noqa: PTH116
    except FileNotFoundError:
        return None
