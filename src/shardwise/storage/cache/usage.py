"""The disk space of the cache and its statistics, shared by all its processes in one file.

Keeps the limit, and I8: the numbers are read and written under a `flock`, which the kernel drops
when its holder dies. A mark is set during a change: a process that finds it set, or the machine
rebooted since, counts the files instead of trusting the number. The lock is taken for each block
that is fetched, never for a cached one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "UsageFile"]

_MAGIC = b"swledgr1"
# Magic, mark, bytes on disk, hits, misses, evictions, damaged, limit, boot id.
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
    """The file of a cache's usage.

    Args:
        path: the file; created at the first write.
        count: adds up the space of all files, for when the number can't be trusted.
    """

    def __init__(self, path: str, count: Callable[[], int]) -> None:
        self._path = path
        self._count = count
        self._fd = -1
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._boot = _boot()

    def __del__(self) -> None:
        if self._fd >= 0 and self._pid == os.getpid():
            os.close(self._fd)

    @contextmanager
    def lock(self) -> Iterator[Usage]:
        """Take the lock; changes of the result are written at the end.

        An exception leaves the mark set: the next holder counts the files.

        Raises:
            OSError: the file can't be written, or the lock was not free for 60 s.
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
        """The numbers without the lock; zeros if there is no file."""
        try:
            data = Path(self._path).read_bytes()
        except OSError:
            return Usage()
        return self._parse(data)[1] or Usage()

    def _acquire(self) -> int:
        end = time.monotonic() + _TIMEOUT_S
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
                        f"{self._path!r} is locked for more than {_TIMEOUT_S:g} s: is one of the "
                        "cache's processes stopped?"
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
        if usage is None or not is_sound:
            usage = usage or Usage()
            usage.num_bytes = self._count()
        return usage

    def _write(self, fd: int, usage: Usage, *, mark: int) -> None:
        data = _FORM.pack(
            _MAGIC,
            mark,
            usage.num_bytes,
            usage.hits,
            usage.misses,
            usage.evictions,
            usage.damaged,
            usage.max_bytes,
            self._boot,
        )
        os.pwrite(fd, data, 0)

    def _parse(self, data: bytes) -> tuple[bool, Usage | None]:
        """Whether `num_bytes` can be trusted, and the numbers; None if the file has none."""
        if len(data) != _FORM.size:
            return False, None
        magic, mark, *numbers, boot = _FORM.unpack(data)
        if magic != _MAGIC:
            return False, None
        return mark == 0 and boot == self._boot, Usage(*numbers)


def _boot() -> bytes:
    """The id of this boot of the machine: a power failure may lose what was written before."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return b""
