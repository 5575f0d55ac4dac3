"""The members of a tar that is read as a stream, from the first byte to the last.

Keeps I6: the library's scan follows the chain of headers and holds every checksum; damage, a cut,
and data behind the end are errors that name url, key and offset. Compressed tars are unpacked.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from shardwise.errors import DataError
from shardwise.sources.tar.scan.byte_source import StreamBytes
from shardwise.sources.tar.scan.members import scan_members
from shardwise.sources.tar.scan.walk import HeaderScan

# The bytes, and the members in them: names, and where each payload begins and ends.
Block = tuple[bytes, list[bytes], list[int], list[int]]

_UNPACKERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_MAGIC_BYTES = 6
_UNPACK_ERRORS = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class DamagedShardError(DataError, tarfile.ReadError):
    """A shard that is damaged or cut short; `tarfile.ReadError` is what WebDataset raised."""

    __str__ = DataError.__str__


class TarStream:
    """The regular members of a tar, many at a time; iterated once.

    `stream` has `read(size)`, which may return less, and b"" at the end. Payload i of a block
    `(data, names, starts, ends)` is `data[starts[i]:ends[i]]`.

    Attributes:
        has_end: after the iteration: whether the shard ended in a block of zeros.

    Raises:
        DamagedShardError: the shard is damaged or cut short. All members before it came out.
    """

    def __init__(self, stream: Any, url: str) -> None:
        self.url = url
        self.has_end = True
        self._stream = stream

    def __iter__(self) -> Iterator[Block]:
        unpacked = Unpacked(self._stream)
        source = StreamBytes(unpacked)
        scan = HeaderScan(source, url=self.url)
        try:
            for members in scan_members(scan, Counter()):
                first = int(members.offsets[0])
                starts = members.offsets - first
                ends = (starts + members.sizes).tolist()
                # numpy's strings end at the first zero, as names do.
                names = members.names.view(f"S{members.names.shape[1]}")[:, 0]
                yield source.read(first, ends[-1]), names.tolist(), starts.tolist(), ends
                source.release(scan.position)
        except DataError as error:
            if unpacked.problem is None:
                raise DamagedShardError(
                    error.reason,
                    url=error.url,
                    key=error.key,
                    field=error.field,
                    offset=error.offset,
                ) from error
        if unpacked.problem is not None:
            raise DamagedShardError(
                f"the compressed shard is damaged or cut short: {unpacked.problem!r}",
                url=self.url,
                offset=unpacked.num_bytes,
            ) from unpacked.problem
        self.has_end = scan.has_end


class Unpacked:
    """A stream, unpacked if it is compressed; where unpacking fails it ends, with a `problem`."""

    def __init__(self, stream: Any) -> None:
        self.problem: Exception | None = None
        self.num_bytes = 0
        start = stream.read(_MAGIC_BYTES)
        while 0 < len(start) < _MAGIC_BYTES and (more := stream.read(_MAGIC_BYTES - len(start))):
            start += more
        self._stream: Any = _Rest(start, stream)
        for magic, unpack in _UNPACKERS.items():
            if start.startswith(magic):
                self._stream = unpack(self._stream)

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; b"" at the end."""
        # Of a compressed stream that is cut, `read` would lose what was unpacked before the cut.
        read = getattr(self._stream, "read1", None) or self._stream.read
        try:
            data: bytes = read(size)
        except _UNPACK_ERRORS as error:
            self.problem = error
            return b""
        self.num_bytes += len(data)
        return data


class _Rest(io.RawIOBase):
    """A stream whose first bytes have been read already."""

    def __init__(self, start: bytes, stream: Any) -> None:
        super().__init__()
        self._start = start
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            data: bytes = self._stream.read(size)
            return data
        if size < 0:
            size = len(self._start)
        start, self._start = self._start[:size], self._start[size:]
        return start
