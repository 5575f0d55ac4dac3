"""A file that says it is remote: local bytes, an ETag, and a log of what was asked for.

The log is a file that many processes may write to at once, so it counts over all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.base.errors import StaleIndexError
from shardwise.storage import FileStat, LocalFile
from shardwise.storage.protocol import ReadRequest, RemoteReads


@dataclass
class CountedFile(RemoteReads):
    """A file under a made-up URL.

    Attributes:
        url: what it is called.
        path: where its bytes are.
        log: gets a line `url offset length` for each range.
        etag: None makes one of the bytes' length and time; "" says that the store has none.
        mtime_ns: what the store says; None for the real one.
    """

    url: str
    path: Path
    log: Path
    etag: str | None = None
    mtime_ns: int | None = None
    pinned: FileStat | None = None

    is_remote = True

    def open(self) -> None:
        self.stat()

    def stat(self) -> FileStat:
        self._note("stat")
        return self._now()

    def _now(self) -> FileStat:
        found = self.path.stat()
        etag = f'"{found.st_size}-{found.st_mtime_ns}"' if self.etag is None else self.etag
        mtime_ns = found.st_mtime_ns if self.mtime_ns is None else self.mtime_ns
        return FileStat(found.st_size, mtime_ns, etag)

    def pin(self, stat: FileStat) -> None:
        self.pinned = stat

    @staticmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        for file, ranges in requests:
            if file.pinned is not None and file.pinned.etag and file.pinned != file._now():
                raise StaleIndexError("replaced", url=file.url)
            for start, stop, begin in ranges:
                file._note(f"{start} {stop - start}")
                LocalFile(file.path).read_into(start, buffer[begin : begin + stop - start])

    def close(self) -> None:
        return

    def _note(self, what: str) -> None:
        fd = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{self.url} {what}\n".encode())
        os.close(fd)

    def reads(self) -> Counter[tuple[int, int]]:
        """How often each range (offset, length) of this file was asked for."""
        lines = [line.split() for line in self._lines()]
        return Counter((int(at), int(n)) for url, at, n in (x for x in lines if len(x) == 3))

    def stats(self) -> int:
        """How often it was asked what it is."""
        return sum(line.endswith(" stat") for line in self._lines())

    def _lines(self) -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if line.startswith(f"{self.url} ")]
