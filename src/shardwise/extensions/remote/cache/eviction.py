"""The disk space of the cache: counted by all its processes in one file, and bounded by eviction.

Keeps the limit, and I8: the numbers of the usage file are read and written under a `flock`, which
the kernel drops when its holder dies. A mark is set during a change: a process that finds it set,
or the machine rebooted since, counts the files instead of trusting the number. The lock is taken
for each block that is fetched, never for a cached one.

Eviction runs under that lock: parts of dead processes are removed first, then the blocks that are
wanted last. Only files with names of this cache are touched. A block that is being read is locked
by its reader and skipped; an evicted block is truncated before it is unlinked, so its space is free
even where it is open.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardwise.extensions.remote.cache.block_file import BLOCK_NAME, space_of
from shardwise.extensions.remote.cache.expected import NextUses
from shardwise.plan.uses import NEVER

_MAGIC = b"swledgr1"
# Magic, mark, the numbers of `Usage` in their order, boot id.
_FORM = struct.Struct("<8sqqqqqqq36s")
# The lock is held for microseconds, or while all blocks are listed.
_TIMEOUT_S = 60.0


@dataclass
class Usage:
    """Disk space and statistics of a cache.

    Attributes:
        num_bytes: on disk, of blocks and parts.
        hits: blocks that were read from the cache.
        misses: blocks that were fetched.
        evictions: blocks that were removed to make room.
        damaged: blocks that were removed because a digest differed.
        max_bytes: the limit of the last process that wrote.
    """

    num_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    damaged: int = 0
    max_bytes: int = 0


class UsageFile:
    """The file of the usage of a cache in some folder, created at the first write.

    `timeout_s`: seconds that its lock is waited for.
    """

    def __init__(self, folder: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._folder = folder
        self._path = f"{folder}/ledger"
        self._fd = -1
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._boot = boot_id()

    def __del__(self) -> None:
        if self._fd >= 0 and self._pid == os.getpid():
            os.close(self._fd)

    @contextmanager
    def lock(self) -> Iterator[Usage]:
        """Take the lock; changes of the result are written at the end.

        An exception leaves the mark set: the next holder counts the files.

        Raises:
            OSError: the file can't be written, or its lock was not free for `timeout_s`.
        """
        with self._lock:
            fd = self._acquire()
            try:
                usage = self._read(fd)
                self._write(fd, usage, mark=1)
                yield usage
                self._write(fd, usage, mark=0)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def read(self) -> Usage:
        """Read the numbers without the lock; zeros if the file is missing."""
        try:
            data = Path(self._path).read_bytes()
        except OSError:
            return Usage()
        return self._parse(data)[1]

    def _acquire(self) -> int:
        end = time.monotonic() + self._timeout_s
        pause = 1e-4
        while True:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{self._path!r} is locked for more than {self._timeout_s:g} s: is one of "
                        "the cache's processes stopped?"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, 5e-3)
                continue
            if os.fstat(self._fd).st_nlink:
                return self._fd
            # The whole cache was removed: other processes use a new file by now.
            os.close(self._fd)
            self._fd = -1

    def _read(self, fd: int) -> Usage:
        is_sound, usage = self._parse(os.pread(fd, _FORM.size, 0))
        if not is_sound:
            usage.num_bytes = disk_space(self._folder)
        return usage

    def _write(self, fd: int, usage: Usage, *, mark: int) -> None:
        data = _FORM.pack(_MAGIC, mark, *vars(usage).values(), self._boot)
        os.pwrite(fd, data, 0)

    def _parse(self, data: bytes) -> tuple[bool, Usage]:
        """Whether `num_bytes` can be trusted, and the numbers; zeros if the file has none."""
        if len(data) != _FORM.size or not data.startswith(_MAGIC):
            return False, Usage()
        _, mark, *numbers, boot = _FORM.unpack(data)
        return mark == 0 and boot == self._boot, Usage(*numbers)


def boot_id() -> bytes:
    """The id of this boot of the machine: a power failure may lose what was written before."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return b""


_PART_NAME = re.compile(BLOCK_NAME.pattern + r"\.part")


class CacheEntry(NamedTuple):
    """A file of the cache: when it was used last, its name, the space that it takes."""

    used_ns: int
    name: str
    space: int


def _scan(folder: str, pattern: re.Pattern[str]) -> Iterator[CacheEntry]:
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


def scan_blocks(folder: str) -> Iterator[CacheEntry]:
    """The blocks of a cache."""
    return _scan(f"{folder}/blocks", BLOCK_NAME)


def scan_parts(folder: str) -> Iterator[CacheEntry]:
    """The parts of a cache, which are being written, or were when their process died."""
    return _scan(f"{folder}/parts", _PART_NAME)


def disk_space(folder: str) -> int:
    """The disk space of all blocks and parts of a cache."""
    # Parts first: a part that becomes a block meanwhile is counted once.
    space = {entry.name.removesuffix(".part"): entry.space for entry in scan_parts(folder)}
    space |= {entry.name: entry.space for entry in scan_blocks(folder)}
    return sum(space.values())


class Eviction:
    """The blocks in the order of their eviction, in a heap that is rebuilt when it is out of date.

    Blocks that no loader expects come first, the least recently used of them before others; then
    those whose next use is farthest (Belady).
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._blocks = f"{folder}/blocks"
        # Sorted by two numbers: 0 and the time of the last use, or 1 and the negative next use.
        self._heap: list[tuple[int, int, CacheEntry]] = []
        # The heap lacks blocks that were published after this.
        self._scanned_ns = 0
        self._next_uses: NextUses  # from the first scan on
        # Blocks may be removed before the next uses of others, which are read meanwhile, count.
        self._num_left = 0

    def make_room(self, usage: Usage, space: int, limit: int, *, name: str) -> int:
        """Evict until `space` bytes are free for a block; returns the number of evicted ones.

        Ends early if nothing more can be evicted, or if all other blocks are used before the second
        use of this one: see `usage.num_bytes`.
        """
        evicted = 0
        is_fresh = False
        while usage.num_bytes + space > limit:
            if not self._heap or (not is_fresh and self._is_stale):
                if is_fresh:
                    break
                self._rescan(usage)
                is_fresh = True
                continue
            is_expected, order, entry = heapq.heappop(self._heap)
            used_ns = _used_ns(f"{self._blocks}/{entry.name}")
            if used_ns is None:
                continue
            now = _order(entry._replace(used_ns=used_ns), self._step_of(entry.name))
            if now[:2] != (is_expected, order):
                # Used since the scan.
                heapq.heappush(self._heap, now)
                continue
            self._num_left -= 1
            if is_expected and -order < NEVER and -order <= self._step_of(name, skip=1):
                heapq.heappush(self._heap, now)
                break  # read past the cache: the cached blocks are used sooner
            freed = remove_block(f"{self._blocks}/{entry.name}")
            usage.num_bytes -= freed
            evicted += bool(freed)
        usage.evictions += evicted
        return evicted

    @property
    def _is_stale(self) -> bool:
        """Whether blocks may come before the heap's first one that are not where they belong."""
        is_expected, order, _ = self._heap[0]
        # Used after the scan: a newer block may be older.
        return self._num_left < 0 or (not is_expected and order > self._scanned_ns)

    def _rescan(self, usage: Usage) -> None:
        """Sweep, list all blocks, and correct the usage."""
        self._scanned_ns = time.time_ns()
        sweep_parts(self._folder, usage)
        self._next_uses = NextUses(self._folder)
        entries = list(scan_blocks(self._folder))
        steps = self._next_uses.of([entry.name for entry in entries]).tolist()
        self._heap = [_order(entry, step) for entry, step in zip(entries, steps, strict=True)]
        heapq.heapify(self._heap)
        self._num_left = len(entries) // 8
        usage.num_bytes = disk_space(self._folder)

    def _step_of(self, name: str, *, skip: int = 0) -> int:
        return int(self._next_uses.of([name], skip=skip)[0])


def _order(entry: CacheEntry, step: int) -> tuple[int, int, CacheEntry]:
    return (0, entry.used_ns, entry) if step < 0 else (1, -step, entry)


def sweep_parts(folder: str, usage: Usage) -> int:
    """Remove the parts of dead processes; returns their number."""
    swept = 0
    for entry in list(scan_parts(folder)):
        freed = remove_block(f"{folder}/parts/{entry.name}")
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
