"""Sources of a media file's bytes: memory, or ranges of a remote file."""

from __future__ import annotations

import os
from typing import Protocol

from shardwise.base.errors import DataError


class RangeReader(Protocol):
    """A media file that is read by ranges."""

    @property
    def num_bytes(self) -> int: ...

    def holds(self, start: int, stop: int) -> bool:
        """Whether bytes `[start, stop)` are in memory."""
        ...

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Bytes `[start, stop)`, which lie inside the file; what is not held is one request."""
        ...


class BytesReader:
    """A file that is in memory; a read copies nothing.

    Examples:
        >>> bytes(BytesReader(b"abcdef").read(1, 3))
        b'bc'
    """

    __slots__ = ("_view", "num_bytes")

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data)
        self.num_bytes = len(self._view)

    def holds(self, start: int, stop: int) -> bool:
        return 0 <= start <= stop <= self.num_bytes

    def read(self, start: int, stop: int) -> memoryview:
        return self._view[start:stop]


def read_exactly(reader: RangeReader, start: int, stop: int) -> bytes | memoryview:
    """Read a range that the file must have."""
    if not 0 <= start <= stop <= reader.num_bytes:
        raise DataError(
            f"the file has {reader.num_bytes} bytes, and bytes {start} to {stop} are needed: was "
            "it cut?",
            offset=min(max(start, 0), reader.num_bytes),
        )
    data = reader.read(start, stop)
    if len(data) != stop - start:
        raise DataError(
            f"a read of bytes {start} to {stop} gave {len(data)} bytes: was the file cut?",
            offset=start,
        )
    return data


class RangeFile:
    """A reader as libsndfile takes a file: it reads what that reads."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.num_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        stop = min(self._at + len(view), self._reader.num_bytes)
        count = max(0, stop - self._at)
        if count:
            view[:count] = read_exactly(self._reader, self._at, stop)
            self._at = stop
        return count
