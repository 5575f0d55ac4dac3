"""How much space the cache takes, known to all its processes: a few numbers in a file.

Keeps the limit, and I8: the numbers are read and written under a `flock`, which the kernel drops
when its holder dies. A mark says that a change is under way: who finds it set, or finds that the
machine was started anew, counts the files instead of trusting the number. The lock is taken for a
block that is fetched, never for one that is there. Imports the standard library.
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

__all__ = ["Books", "Ledger"]

_MAGIC = b"swledgr1"
# Magic, mark, space, hits, misses, evictions, damaged, limit, what tells one boot from another.
_FORM = struct.Struct("<8sqqqqqqq36s")
# The lock is held for microseconds, or for as long as it takes to look at all blocks.
_TIMEOUT_S = 60.0


@dataclass
class Books:
    """The numbers.

    Attributes:
        num_bytes: the space that blocks and parts take.
        hits: blocks that were read from the cache.
        misses: blocks that were fetched.
        evictions: blocks that made room.
        damaged: blocks that were thrown away because their digest was wrong.
        max_bytes: the limit of who wrote last.
    """

    num_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    damaged: int = 0
    max_bytes: int = 0


class Ledger:
    """The file with the numbers.

    Args:
        path: the file; made when it is first written.
        count: counts the space of all files, where the number can't be trusted.
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
    def hold(self) -> Iterator[Books]:
        """Hold the lock; what is changed in the books is written at the end.

        An exception leaves the mark set: the files are counted the next time.

        Raises:
            OSError: the file can't be written, or the lock is not to be had.
        """
        with self._lock:
            fd = self._acquire()
            try:
                books = self._read(fd)
                self._write(fd, books, mark=1)
                yield books
                self._write(fd, books, mark=0)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def peek(self) -> Books:
        """The numbers as they are, without the lock; zeros where there are none."""
        try:
            data = Path(self._path).read_bytes()
        except OSError:
            return Books()
        return self._parse(data)[1] or Books()

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
            # Somebody removed the whole cache: others use a new file by now.
            os.close(self._fd)
            self._fd = -1

    def _read(self, fd: int) -> Books:
        is_sound, books = self._parse(os.pread(fd, _FORM.size, 0))
        if books is None or not is_sound:
            books = books or Books()
            books.num_bytes = self._count()
        return books

    def _write(self, fd: int, books: Books, *, mark: int) -> None:
        data = _FORM.pack(
            _MAGIC,
            mark,
            books.num_bytes,
            books.hits,
            books.misses,
            books.evictions,
            books.damaged,
            books.max_bytes,
            self._boot,
        )
        os.pwrite(fd, data, 0)

    def _parse(self, data: bytes) -> tuple[bool, Books | None]:
        """The numbers, and whether the space can be trusted; None if the file holds none."""
        if len(data) != _FORM.size:
            return False, None
        magic, mark, *numbers, boot = _FORM.unpack(data)
        if magic != _MAGIC:
            return False, None
        return mark == 0 and boot == self._boot, Books(*numbers)


def _boot() -> bytes:
    """What tells one boot of the machine from another: a sudden end may lose what was written."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return b""
