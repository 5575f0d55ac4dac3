"""An open block: read at any offset, by any thread, checked where it was not checked yet.

A read holds a shared `flock` of the file, so nobody evicts it meanwhile; between reads only the
descriptor is kept. Who evicts a block cuts it to nothing under an exclusive lock: the space is free
at once, and a descriptor that is still open finds no bytes, never wrong ones. The kernel drops the
locks of a process that dies. Imports the standard library and this package.
"""

from __future__ import annotations

import enum
import fcntl
import os
import threading
import time
from collections.abc import Sequence

from shardwise.storage.cache.blocks import CHUNK_BYTES, BlockInfo, digest, parse_trailer
from shardwise.storage.cache.last_used import note_use

__all__ = ["Held", "Outcome"]

# Uses this close together count as one: the order of blocks used in a burst is of no interest.
_TOUCH_NS = 10_000_000
_LOCK_TRIES = 50
_READ_TRIES = 3

# Offset in the block, beginning and end in the buffer, of each part that is wanted.
Spans = Sequence[tuple[int, int, int]]


class Outcome(enum.Enum):
    """How a read of a block ended."""

    READ = enum.auto()
    GONE = enum.auto()  # not there (any more): no fault
    DAMAGED = enum.auto()


class Held:
    """A block that was opened, or has just been written.

    Args:
        name: the file's name.
        fd: an open descriptor; this object closes it.
        info: what it holds.
        digests: of its chunks.
        checked_ns: the last change, if its bytes are known to be right since then; else None.
    """

    __slots__ = (
        "_all",
        "_digests",
        "_lock",
        "_pid",
        "_readers",
        "_seen",
        "_touched_ns",
        "fd",
        "info",
        "name",
    )

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
        # The file's last change, and a bit for each chunk that was found right since.
        self._seen = (
            (os.fstat(fd).st_mtime_ns, 0) if checked_ns is None else (checked_ns, self._all)
        )
        self._lock = threading.Lock()
        self._readers = 0
        self._touched_ns = 0
        self._pid = os.getpid()

    @classmethod
    def open(cls, path: str, name: str) -> Held | Outcome:
        """Open a block; GONE if there is none, DAMAGED if what is there is none."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            # Its access time is set by `read` alone. Not allowed for files of other users.
            fd = os.open(path, flags | os.O_NOATIME)
        except PermissionError:
            fd = os.open(path, flags)
        except FileNotFoundError:
            return Outcome.GONE
        held: Held | None = None
        try:
            num_bytes = os.fstat(fd).st_size
            if not num_bytes:
                return Outcome.GONE
            found = parse_trailer(name, num_bytes, lambda length, at: os.pread(fd, length, at))
            if found is not None:
                held = cls(name, fd, *found)
                return held
            # It may have been evicted while it was looked at.
            return Outcome.DAMAGED if os.fstat(fd).st_size == num_bytes else Outcome.GONE
        finally:
            if held is None:
                os.close(fd)

    def __del__(self) -> None:
        # In a forked child the number may belong to another file by now: it's left alone there.
        if self._pid == os.getpid():
            os.close(self.fd)

    def read(self, spans: Spans, buffer: memoryview) -> Outcome:
        """Fill parts of a buffer.

        Args:
            spans: for each part: its offset in the block, where it begins and ends in the buffer.
            buffer: what is filled.

        Raises:
            OSError: the disk can't be read.
        """
        if not self._enter():
            return Outcome.GONE
        try:
            for _ in range(_READ_TRIES):
                seen = self._seen
                is_filled = self._fill(spans, buffer, seen)
                # Looked at after the read: what was written before or meanwhile shows.
                found = os.fstat(self.fd)
                if not found.st_nlink or not found.st_size:
                    return Outcome.GONE
                if found.st_mtime_ns == seen[0]:
                    break
                # Somebody wrote into it: nothing that was found right before counts.
                self._seen = found.st_mtime_ns, 0
            else:
                return Outcome.DAMAGED
            if not is_filled:
                return Outcome.DAMAGED
            now = time.time_ns()
            if now - self._touched_ns > _TOUCH_NS:
                # A read-only disk, or a block of another user: it is not asked again.
                self._touched_ns = now if note_use(self.fd, now) else 1 << 63
        finally:
            self._leave()
        return Outcome.READ

    def is_sound(self) -> bool:
        """Whether all of it is as it was written."""
        self._seen = self._seen[0], 0
        num_bytes = self.info.num_bytes
        return self.read([(0, 0, num_bytes)], memoryview(bytearray(num_bytes))) is Outcome.READ

    def _fill(self, spans: Spans, buffer: memoryview, seen: tuple[int, int]) -> bool:
        """Read some spans; False if they are not what was written."""
        fd, preadv = self.fd, os.preadv
        for offset, begin, end in spans:
            if preadv(fd, [buffer[begin:end]], offset) != end - begin:
                return False
        return seen[1] == self._all or self._check(spans, buffer, seen)

    def _check(self, spans: Spans, buffer: memoryview, seen: tuple[int, int]) -> bool:
        """Check the chunks that hold some spans, unless they have been."""
        fd, digests, num_bytes = self.fd, self._digests, self.info.num_bytes
        scratch: memoryview | None = None
        changed_ns, checked = seen
        for offset, begin, end in spans:
            stop = offset + end - begin
            for chunk in range(offset // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
                if checked >> chunk & 1:
                    continue
                first = chunk * CHUNK_BYTES
                last = min(first + CHUNK_BYTES, num_bytes)
                if offset <= first and last <= stop:
                    data = buffer[begin + first - offset : begin + last - offset]
                else:
                    # Only a part of it was wanted: it's read once more, in the whole.
                    if scratch is None:
                        scratch = memoryview(bytearray(CHUNK_BYTES))
                    data = scratch[: last - first]
                    if os.preadv(fd, [data], first) != len(data):
                        return False
                if digest(data) != digests[chunk]:
                    return False
                checked |= 1 << chunk
        # Another thread's bits may get lost here: it would check once more.
        self._seen = changed_ns, checked
        return True

    def _enter(self) -> bool:
        """Take the shared lock for the first reader; False if the block is being evicted."""
        with self._lock:
            if not self._readers:
                for attempt in range(_LOCK_TRIES):
                    try:
                        fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        # Held for a moment by who writes or evicts it.
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
