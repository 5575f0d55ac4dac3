"""The bytes of a tar that is read as a stream, unpacked where it is compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable
from typing import Any

from shardwise.errors import DataError

READ_BYTES = 4 << 20
_UNPACKERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_UNPACK_ERRORS = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class DamagedShardError(DataError, tarfile.ReadError):
    """A shard that is damaged or cut short; `tarfile.ReadError` is what WebDataset raised."""

    __str__ = DataError.__str__


class _Rest:
    """A stream whose first bytes have been read already."""

    def __init__(self, start: bytes, stream: Any) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            data: bytes = self._stream.read(size)
            return data
        if size < 0:
            start, self._start = self._start, b""
            data = self._stream.read()
            return start + data
        start, self._start = self._start[:size], self._start[size:]
        return start


class TarBytes:
    """A window on a stream: `_data[_at:]` are the bytes from `_base` on that are not used up.

    Where unpacking fails, the stream ends and `_problem` says why: what came before it counts.
    """

    def __init__(self, stream: Any, url: str) -> None:
        self.url = url
        self._stream = stream
        self._data = b""
        self._at = 0
        self._base = 0
        self._at_end = False
        self._problem: DamagedShardError | None = None

    def _unpack(self) -> None:
        start = self._read(6)
        while start and len(start) < 6:
            more = self._read(6 - len(start))
            if not more:
                break
            start += more
        if not start:
            raise self._problem or self._damage(
                "an empty file: not a tar, not even one without members", 0
            )
        stream = _Rest(start, self._stream)
        for magic, unpack in _UNPACKERS.items():
            if start.startswith(magic):
                self._stream = unpack(stream)
                return
        if start.startswith(b"\x28\xb5\x2f\xfd"):
            raise self._damage("compressed by zstd, which can't be read: unpack it first", 0)
        self._stream = stream

    def _read(self, size: int) -> bytes:
        # Of a compressed stream that is cut, `read` would lose what was unpacked before the cut.
        read = getattr(self._stream, "read1", None) or self._stream.read
        try:
            data: bytes = read(size)
        except _UNPACK_ERRORS as error:
            self._problem = self._damage(
                f"the compressed shard is damaged or cut short: {error!r}",
                self._base + len(self._data) - self._at,
            )
            self._problem.__cause__ = error
            return b""
        return data

    def _fill(self, length: int) -> None:
        """Have so many bytes that are not used up, unless the stream ends."""
        rest = self._data[self._at :]
        parts = [rest]
        missing = length - len(rest)
        while missing > 0 and not self._at_end:
            part = self._read(missing)
            self._at_end = not part
            parts.append(part)
            missing -= len(part)
        self._data, self._at = b"".join(parts), 0

    def _use(self, num_bytes: int) -> None:
        self._at += num_bytes
        self._base += num_bytes

    def _damage(self, message: str, offset: int) -> DamagedShardError:
        return DamagedShardError(message, url=self.url, offset=offset)
