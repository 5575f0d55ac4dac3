"""The reads of one remote file, made of the one read of many: with and without a cache alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from shardwise.storage.protocol import ReadRequest
from shardwise.storage.requests.ranges import byte_ranges

__all__ = ["RemoteReads"]


class RemoteReads(ABC):
    """A file whose `read_many` does all the reading; see `File` for what its methods raise."""

    __slots__ = ()

    @staticmethod
    @abstractmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        """Fill a buffer with ranges of several files; see `File.read_many`."""

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`."""
        buffer = bytearray(max(0, length))
        self.read_spans([offset], [length], memoryview(buffer), 0)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a writable contiguous buffer with the bytes at `offset`."""
        view = memoryview(buffer).cast("B")
        self.read_spans([offset], [len(view)], view, 0)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Fill a buffer with several ranges; all requests for them are in flight at once."""
        self.read_many([ReadRequest(self, byte_ranges(offsets, ends, begin))], buffer)
