"""The files that processes share in a cache's folder: its usage, and the uses of each loader.

Keeps the limit, and I8: the numbers of the usage file are read and written under a `flock`, which
the kernel drops when its holder dies. A mark is set during a change: a process that finds it set,
or the machine rebooted since, counts the files instead of trusting the number. The lock is taken
for each block that is fetched, never for a cached one.

A loader's file is locked while it is used: the next loader removes an unlocked one.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import re
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardwise.base.counters import IO_COUNTS
from shardwise.base.shown import shown
from shardwise.extensions.remote.cache.block_file import BLOCK_NAME, space_of

_logger = logging.getLogger("shardwise")

_MAGIC = b"swledgr1"
# Magic, mark, the numbers of `Usage` in their order, boot id.
_FORM = struct.Struct("<8sqqqqqqq36s")
# The lock is held for microseconds, or while all blocks are listed.
_TIMEOUT_S = 60.0


@dataclass
class Usage:
    """Bytes on disk and counts of blocks of a cache; the limit is the last writer's."""

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
        is_sound, usage = _parse(os.pread(fd, _FORM.size, 0), self._boot)
        if not is_sound:
            usage.num_bytes = disk_space(self._folder)
        return usage

    def _write(self, fd: int, usage: Usage, *, mark: int) -> None:
        data = _FORM.pack(_MAGIC, mark, *vars(usage).values(), self._boot)
        os.pwrite(fd, data, 0)


def read_usage(folder: str) -> Usage:
    """Read the numbers of a cache without the lock, in 5 µs; zeros if the file can't be read."""
    try:
        fd = os.open(f"{folder}/ledger", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _parse(os.read(fd, _FORM.size), b"")[1]
        finally:
            os.close(fd)
    except OSError:
        return Usage()


def _parse(data: bytes, boot: bytes) -> tuple[bool, Usage]:
    """Whether `num_bytes` can be trusted in this boot, and the numbers; zeros if there are none."""
    if len(data) != _FORM.size or not data.startswith(_MAGIC):
        return False, Usage()
    _, mark, *numbers, written_in = _FORM.unpack(data)
    return mark == 0 and written_in == boot, Usage(*numbers)


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
        IO_COUNTS.add(hits=hits, disk_bytes=num_bytes)
        self._count += hits
        if self._count >= _FLUSHED_HITS or time.monotonic() - self._flushed_at > _FLUSHED_S:
            self.flush()

    def take(self) -> int:
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


# The step that its loader has come to, and the number of uses or blocks; 0 until they are there.
HEAD = struct.Struct("<qq")


class LoaderFile:
    """A file of a loader, in the folder `kind` of a cache; raises OSError.

    `lock` is that of the cache: under it new files appear, and unlocked ones are removed.
    """

    def __init__(
        self, folder: str, kind: str, lock: Callable[[], AbstractContextManager[object]]
    ) -> None:
        os.makedirs(f"{folder}/{kind}", exist_ok=True)  # noqa: PTH103
        self._path = Path(f"{folder}/{kind}/{uuid.uuid4().hex}")
        self._lock, self.is_filled = threading.Lock(), False
        with lock():
            live_files(folder, kind, remove_dead=True)
            # Homes have the token of the job.
            self._path.touch(0o600 if kind == "homes" else 0o666, exist_ok=False)
            self._file = self._path.open("r+b")
            self._file.write(HEAD.pack(0, 0))
            self._file.flush()
            fcntl.flock(self._file, fcntl.LOCK_EX)  # last: others read what is locked
        self._map = mmap.mmap(self._file.fileno(), HEAD.size)

    def fill(self, contents: bytes, step: int, count: int) -> None:
        """Write the contents, unless it is closed; others see them when they are whole."""
        with self._lock:
            if self.is_open:
                self._file.write(contents)
                self._file.flush()
                HEAD.pack_into(self._map, 0, step, count)
                self.is_filled = True

    @property
    def is_open(self) -> bool:
        return not self._file.closed

    def move(self, step: int) -> None:
        with self._lock:
            if self.is_open and self.is_filled:  # readers wait for one that is new
                struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        with self._lock:
            self._path.unlink(missing_ok=True)
            self._map.close()
            self._file.close()


def live_files(folder: str, kind: str, *, remove_dead: bool = False) -> list[Path]:
    """The files of loaders that are there; others are removed only under the cache's lock."""
    found = []
    for path in Path(f"{folder}/{kind}").glob("*"):
        with suppress(OSError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(path)
            else:
                if remove_dead:
                    path.unlink()
    return found
