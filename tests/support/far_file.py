"""A file in memory that says it is remote, and counts what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.storage import FileStat
from shardwise.storage.protocol import ReadRequest, RemoteReads


class FarFile(RemoteReads):
    """Satisfies `shardwise.storage.File`, for reads of one file at once.

    Attributes:
        num_rounds: calls, each of which costs one wait for an answer.
        num_requests: ranges.
        num_bytes: their bytes.
    """

    is_remote = True
    url = "far://x.tar"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.num_rounds = self.num_requests = self.num_bytes = 0

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def pin(self, stat: FileStat) -> None:
        """It does not change."""

    def stat(self) -> FileStat:
        return FileStat(len(self._data), 0, '"1"')

    @staticmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        [(file, ranges)] = requests
        assert ranges, "asked for nothing"
        file.num_rounds += 1
        for start, stop, begin in ranges:
            data = file._data[start:stop]
            assert len(data) == stop - start, "asked for what is not there"
            buffer[begin : begin + len(data)] = data
            file.num_requests += 1
            file.num_bytes += len(data)
