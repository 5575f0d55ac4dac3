"""The bytes of a tar as a scan of its headers reads them: of a file, or of a forward stream.

Compressed files are refused: single samples can't be read out of the middle of such a stream.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.shown import in_command
from shardwise.storage import is_local
from shardwise.storage.known_formats import known_format


class ReadsAt(Protocol):
    """A reader of bytes by their offset: a file, or a stream that can go back."""

    def read(self, offset: int, length: int, /) -> bytes:
        """Exactly `length` available bytes."""
        ...


class FileBytes:
    """The bytes of a file by offset, requested in ascending order; read without prefetch."""

    first_read_bytes = 64 << 10
    block_bytes = 1 << 20  # of the next reads, where all bytes are read
    sparse_headers = 256  # are read one by one before a block is tried again
    # At 16 KiB per member or more, one read per header costs less than reading the payloads, too.
    sparse_stride = 16 << 10

    def __init__(self, file: ReadsAt, num_bytes: int) -> None:
        self._file = file
        self._num_bytes = num_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` available bytes."""
        return self._file.read(offset, length)

    # Reads a long stretch that others follow.
    read_block = read

    def again(self, num_bytes: int) -> Self | None:
        """The first bytes once more, for another walk; None where it can't go back."""
        return type(self)(self._file, num_bytes)

    def available(self, offset: int, length: int) -> int:
        """The number of bytes at `offset`, `length` at most: fewer only where the tar ends."""
        return max(0, min(length, self._num_bytes - offset))

    def is_dense(self, positions: NDArray[np.int64], end: int) -> bool:
        """Whether reading all bytes is cheaper, by where the last headers and the next one are."""
        return (end - int(positions[0])) // len(positions) < self.sparse_stride


class Readable(Protocol):
    """The interface of a forward stream; a read may return less than was requested."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; b"" at the end."""
        ...


class StreamBytes:
    """A stream that is read once, from front to back, and kept from `release`d bytes on.

    Members and payloads are read side by side::

        source = StreamBytes(stream)
        scan = HeaderScan(source, url=url)
        for members in scan_members(scan, Counter()):
            payloads = source.read_many(members.offsets.tolist(), members.sizes.tolist())
            source.release(scan.position)

    At most one block of 1 MiB and one member are kept in memory. `earlier` reads bytes that were
    released, where the stream can go back: a hard link has those of its target.
    """

    first_read_bytes = 64 << 10
    block_bytes = 1 << 20
    # One: payloads between headers are kept until they are released.
    sparse_headers = 1

    def __init__(self, stream: Readable, earlier: ReadsAt | None = None) -> None:
        self._stream = stream
        self._earlier = earlier
        self._data = b""
        self._base = 0
        self._is_at_end = False

    def available(self, offset: int, length: int) -> int:
        """See `FileBytes`; reads on in the stream."""
        num_missing = offset + length - self._base - len(self._data)
        parts = [self._data]
        while num_missing > 0 and not self._is_at_end:
            part = self._stream.read(num_missing)
            self._is_at_end = not part
            parts.append(part)
            num_missing -= len(part)
        if len(parts) > 1:
            self._data = b"".join(parts)
        return max(0, min(length, self._base + len(self._data) - offset))

    def read(self, offset: int, length: int) -> bytes:
        self.available(offset, length)
        start = offset - self._base
        return self._data[start : start + length]

    def read_many(self, offsets: list[int], sizes: list[int]) -> list[bytes]:
        """Available bytes at ascending offsets, or earlier ones: the payloads of some members."""
        if offsets:
            last = max(range(len(offsets)), key=offsets.__getitem__)
            self.available(offsets[last], sizes[last])
        data, base, earlier = self._data, self._base, self._earlier
        return [
            data[offset - base : offset - base + size]
            if offset >= base or earlier is None
            else earlier.read(offset, size)
            for offset, size in zip(offsets, sizes, strict=True)
        ]

    read_block = read

    def again(self, num_bytes: int) -> FileBytes | None:
        return None if self._earlier is None else FileBytes(self._earlier, num_bytes)

    def is_dense(self, positions: NDArray[np.int64], end: int) -> bool:  # noqa: ARG002
        """A stream's bytes are all read."""
        return True

    def release(self, offset: int) -> None:
        """Drop the bytes before `offset`."""
        num_bytes = max(0, min(offset - self._base, len(self._data)))
        self._data = self._data[num_bytes:]
        self._base += num_bytes


ByteSource: TypeAlias = FileBytes | StreamBytes


# File endings, by the program that unpacks them.
_SUFFIXES = {
    "gzip": (".gz", ".tgz"),
    "bzip2": (".bz2", ".tbz2"),
    "xz": (".xz", ".txz"),
    "zstd": (".zst", ".tzst"),
}


def refuse_compressed(url: str) -> None:
    """Raise `DataError` if the name is that of a compressed tar, with what to do about it."""
    for what, suffixes in _SUFFIXES.items():
        if url.lower().endswith(suffixes):
            raise _refusal(what, url)


def refuse_compressed_start(start: bytes, url: str) -> None:
    """Raise `DataError` if a file's first bytes are of a compressed file or a table."""
    # A member may be called "PAR1.txt".
    is_tar = start[257:262] == b"ustar"
    found = "" if is_tar else known_format(start, may_be_text=True) or ""
    what = found.partition(":")[0]
    if what in _SUFFIXES:
        raise _refusal(what, url)
    if what in ("a Parquet file", "an Arrow file"):
        raise DataError(f"no tar, but {found}", url=url)


def _refusal(what: str, url: str) -> DataError:
    unpack = f"with `{what} -d {in_command(url)}`"
    if not is_local(url):
        unpack = "there, or turn it off that the server compresses what it sends (Content-Encoding)"
    return DataError(
        f"the shard is compressed ({what}): single samples can't be read from it; unpack it "
        f"{unpack} (images and video are compressed already)",
        url=url,
    )
