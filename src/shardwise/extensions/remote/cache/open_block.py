"""An open block: read at any offset, by any thread, each chunk checked at its first read.

A read holds a shared `flock` of the file, so that no process evicts it meanwhile; between reads
only the descriptor is open. Eviction truncates the file under an exclusive lock: the space is free
at once, and a descriptor that is still open reads no bytes, never wrong ones. The kernel drops the
locks of a process that dies.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
import time
from collections.abc import Sequence

from shardwise.extensions.remote.cache.block_file import (
    CHUNK_BYTES,
    BlockInfo,
    digest,
    parse_trailer,
)
from shardwise.storage.byte_ranges import ByteRange

# Uses within 10 ms count as one: eviction needs no order within a burst.
_TOUCH_NS = 10_000_000
_LOCK_TRIES = 50
_READ_TRIES = 3


class DamagedError(Exception):
    """A block's digest differs, or its file is not a block file."""


class OpenBlock:
    """A block of the cache with an open descriptor, which this object closes.

    `checked_ns` is the time of its last change, if its bytes were checked since; else None.
    """

    def __init__(
        self,
        name: str,
        fd: int,
        info: BlockInfo,
        digests: Sequence[int],
        *,
        checked_ns: int | None = None,
    ) -> None:
        self.name = name
        self.fd = fd
        self.info = info
        self._digests = digests
        self._all = (1 << len(digests)) - 1
        # The file's last change, and a bit for each chunk that was checked since.
        self._seen = (
            (os.fstat(fd).st_mtime_ns, 0) if checked_ns is None else (checked_ns, self._all)
        )
        self._lock = threading.Lock()
        self._readers = 0
        self._touched_ns = 0
        self._pid = os.getpid()

    @classmethod
    def open(cls, path: str, name: str) -> OpenBlock | None:
        """Open a block; None if it is missing. Raises DamagedError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            # Only `read` sets its access time. O_NOATIME is refused for files of other users.
            fd = os.open(path, flags | os.O_NOATIME)
        except PermissionError:
            fd = os.open(path, flags)
        except FileNotFoundError:
            return None
        block: OpenBlock | None = None
        try:
            num_bytes = os.fstat(fd).st_size
            if not num_bytes:
                return None
            contents = parse_trailer(name, num_bytes, lambda length, at: os.pread(fd, length, at))
            if contents is not None:
                block = cls(name, fd, *contents)
            elif os.fstat(fd).st_size == num_bytes:  # not evicted meanwhile
                raise DamagedError(path)
            return block
        finally:
            if block is None:
                os.close(fd)

    def __del__(self) -> None:
        # A forked child may use the descriptor's number for another file by now.
        if self._pid == os.getpid():
            os.close(self.fd)

    def read(self, ranges: Sequence[ByteRange], buffer: memoryview) -> bool:
        """Fill parts of a buffer with ranges of the file, within the block.

        Returns:
            Whether they were read: False if the block was evicted.

        Raises:
            DamagedError: a digest differs.
            OSError: the disk can't be read.
        """
        if not self._enter():
            return False
        try:
            for _ in range(_READ_TRIES):
                seen = self._seen
                is_filled = self._fill(ranges, buffer, seen)
                # After the read, so that a write before or during it shows.
                status = os.fstat(self.fd)
                if not status.st_nlink or not status.st_size:
                    return False
                if status.st_mtime_ns == seen[0]:
                    break
                # The file was written to: earlier checks count no more.
                self._seen = status.st_mtime_ns, 0
            else:
                is_filled = False
            if not is_filled:
                raise DamagedError(self.name)
            now = time.time_ns()
            if now - self._touched_ns > _TOUCH_NS:
                # On a read-only disk, or for another user's block, never try again.
                self._touched_ns = now if set_last_used(self.fd, now) else 1 << 63
        finally:
            self._leave()
        return True

    def check(self) -> None:
        """Compare all chunks with their digests; raises as `read` does."""
        self._seen = self._seen[0], 0
        start, num_bytes = self.info.offset, self.info.num_bytes
        whole = ByteRange(start, start + num_bytes, 0)
        self.read([whole], memoryview(bytearray(num_bytes)))

    def _fill(self, ranges: Sequence[ByteRange], buffer: memoryview, seen: tuple[int, int]) -> bool:
        """Read some ranges; False if a digest differs."""
        fd, preadv, first = self.fd, os.preadv, self.info.offset
        for start, stop, begin in ranges:
            length = stop - start
            if preadv(fd, [buffer[begin : begin + length]], start - first) != length:
                return False
        return seen[1] == self._all or self._check(ranges, buffer, seen)

    def _check(
        self, ranges: Sequence[ByteRange], buffer: memoryview, seen: tuple[int, int]
    ) -> bool:
        """Check the chunks of some ranges, unless they have been."""
        fd, digests, num_bytes = self.fd, self._digests, self.info.num_bytes
        scratch: memoryview | None = None
        changed_ns, checked = seen
        for range_ in ranges:
            offset, stop = range_.start - self.info.offset, range_.stop - self.info.offset
            begin = range_.begin
            for chunk in range(offset // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
                if checked >> chunk & 1:
                    continue
                first = chunk * CHUNK_BYTES
                last = min(first + CHUNK_BYTES, num_bytes)
                if offset <= first and last <= stop:
                    data = buffer[begin + first - offset : begin + last - offset]
                else:
                    # A digest needs the whole chunk.
                    if scratch is None:
                        scratch = memoryview(bytearray(CHUNK_BYTES))
                    data = scratch[: last - first]
                    if os.preadv(fd, [data], first) != len(data):
                        return False
                if digest(data) != digests[chunk]:
                    return False
                checked |= 1 << chunk
        # Another thread's bits may get lost here: its chunks are checked again.
        self._seen = changed_ns, checked
        return True

    def _enter(self) -> bool:
        """Take the shared lock for the first reader; False if the block is evicted just now."""
        with self._lock:
            if not self._readers:
                for attempt in range(_LOCK_TRIES):
                    try:
                        fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        # A writer or an eviction locks it for a moment.
                        time.sleep(attempt * 1e-4)
                else:
                    return False
            self._readers += 1
        return True

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                fcntl.flock(self.fd, fcntl.LOCK_UN)


# `os.utime` sets both times of a file, and the time of its last change shows whether somebody wrote
# into a block: `futimens` leaves that one alone. The value is Linux's.
_UTIME_OMIT = (1 << 30) - 2


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


_LIBC = ctypes.CDLL(None)
_TIMES = _Timespec * 2


def set_last_used(fd: int, now_ns: int) -> bool:
    """Set the access time of an open file; False if that is not allowed."""
    seconds, nanoseconds = divmod(now_ns, 10**9)
    times = _TIMES(_Timespec(seconds, nanoseconds), _Timespec(0, _UTIME_OMIT))
    return bool(_LIBC.futimens(ctypes.c_int(fd), times) == 0)
