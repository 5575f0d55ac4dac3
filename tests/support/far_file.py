"""A file in memory that says it is remote, and counts what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.storage import FileStat


class FarFile:
    """Satisfies `shardwise.storage.File`, but for reads of several files at once.

    Attributes:
        num_rounds: calls, each of which costs one wait for an answer.
        num_requests: ranges.
        num_bytes: their bytes.
    """

    gap_bytes = 1 << 20
    is_remote = True

    def __init__(self, data: bytes, url: str = "far://x.tar") -> None:
        self.url = url
        self._data = data
        self.num_rounds = self.num_requests = self.num_bytes = 0

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def pin(self, stat: FileStat) -> None:
        """It does not change."""

    def stat(self) -> FileStat:
        """Its length."""
        return FileStat(len(self._data), 0, '"1"')

    def read(self, offset: int, length: int) -> bytes:
        """A range."""
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """A range."""
        self.read_spans([offset], [len(buffer)], buffer, 0)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Ranges, in one round."""
        self.num_rounds += 1
        for offset, end in zip(offsets, ends, strict=True):
            data = self._data[offset : offset + end - begin]
            assert len(data) == end - begin > 0, "asked for what is not there, or for nothing"
            buffer[begin:end] = data
            self.num_requests += 1
            self.num_bytes += end - begin
            begin = end
