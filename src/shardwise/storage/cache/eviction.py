"""Making room: dead parts are swept, then the blocks that were not used for longest go.

Everything here runs under the ledger's lock. Only files whose names this cache gives are looked at.
A block that somebody reads is locked by its reader and passed over; one that goes is cut to nothing
before its name does, so its space is free even where it is open. Imports this package.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardwise.storage.cache.blocks import BLOCK_NAME, space_of
from shardwise.storage.cache.usage import Books

__all__ = ["PART_NAME", "Room", "Seen", "remove_block", "scan", "sweep_parts"]

PART_NAME = re.compile(BLOCK_NAME.pattern + r"\.part")


class Seen(NamedTuple):
    """A file of the cache: when it was used last, its name, the space that it takes."""

    used_ns: int
    name: str
    space: int


def scan(folder: str, pattern: re.Pattern[str]) -> Iterator[Seen]:
    """The files of a folder whose names fit; the others are nobody's business."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield Seen(found.st_atime_ns, entry.name, space_of(found.st_size))


class Room:
    """The blocks in the order of their last use, as far as it is known here.

    Args:
        blocks: the folder of the blocks.
        parts: the folder of what is being written.
    """

    def __init__(self, blocks: str, parts: str) -> None:
        self._blocks = blocks
        self._parts = parts
        self._oldest: list[Seen] = []
        # Blocks that were used after this are not in the list.
        self._seen_ns = 0

    def count(self) -> int:
        """The space that everything takes."""
        # Parts first: one that becomes a block meanwhile is counted at least once.
        parts = {seen.name.removesuffix(".part"): seen for seen in scan(self._parts, PART_NAME)}
        blocks = list(scan(self._blocks, BLOCK_NAME))
        named = {seen.name for seen in blocks}
        inside = sum(seen.space for seen in blocks)
        return inside + sum(seen.space for name, seen in parts.items() if name not in named)

    def make(self, books: Books, space: int, limit: int) -> int:
        """Evict until so much space is free below the limit; returns how many blocks went.

        Ends early where nothing more can go: look at `books.num_bytes`.
        """
        evicted = 0
        is_fresh = False
        while books.num_bytes + space > limit:
            # What was used since the list was made may be younger than what it lacks.
            is_stale = not is_fresh and self._oldest and self._oldest[0].used_ns > self._seen_ns
            if not self._oldest or is_stale:
                if is_fresh:
                    break
                self._look(books)
                is_fresh = True
                continue
            seen = heapq.heappop(self._oldest)
            used_ns = _used_ns(f"{self._blocks}/{seen.name}")
            if used_ns is None:
                continue
            if used_ns != seen.used_ns:
                # Used since: its turn comes later.
                heapq.heappush(self._oldest, seen._replace(used_ns=used_ns))
                continue
            freed = remove_block(f"{self._blocks}/{seen.name}")
            books.num_bytes -= freed
            evicted += bool(freed)
        books.evictions += evicted
        return evicted

    def _look(self, books: Books) -> None:
        """Sweep, then list all blocks anew; the books learn what is really there."""
        self._seen_ns = time.time_ns()
        sweep_parts(self._parts, books)
        self._oldest = list(scan(self._blocks, BLOCK_NAME))
        heapq.heapify(self._oldest)
        books.num_bytes = self.count()


def sweep_parts(folder: str, books: Books) -> int:
    """Remove the parts that a dead process left; returns how many."""
    swept = 0
    for seen in list(scan(folder, PART_NAME)):
        freed = remove_block(f"{folder}/{seen.name}")
        books.num_bytes -= freed
        swept += bool(freed)
    return swept


def remove_block(path: str, is_wanted: Callable[[int], bool] | None = None) -> int:
    """Remove a block or a part; returns the space that it took, 0 if it stays.

    It stays where someone holds a lock of it: who reads it, or who writes it.

    Args:
        path: the file.
        is_wanted: looks at the open descriptor and says whether this is the one to remove.
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
        found = os.fstat(fd)
        # A part may have become a block, and a block may have been replaced.
        if not found.st_nlink or (is_wanted is not None and not is_wanted(fd)):
            return 0
        if not _is_at(path, found):
            return 0
        os.ftruncate(fd, 0)
        os.unlink(path)  # noqa: PTH108 - names are joined as text: a thousand a second
        return space_of(found.st_size)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _is_at(path: str, found: os.stat_result) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)


def _used_ns(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_atime_ns  # noqa: PTH116
    except FileNotFoundError:
        return None
