"""Boxes of an mp4 file (ISO/IEC 14496-12): walking them, finding `moov` by ranges."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import RangeReader, read_exactly

# The start and end of a box's content.
Span = tuple[int, int]

# The first read of a file: takes ftyp, and where moov comes first, most often all of a short one.
_FIRST_BYTES = 4096
# Bytes to read at once after mdat: the moov of about 2000 frames.
_TAIL_BYTES = 64 << 10
_MAX_MOOV_BYTES = 1 << 30
# More boxes before moov than any program writes.
_MAX_HOPS = 1000


def walk(data: bytes | memoryview, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield `(type, start, end)` of the content of each box in `[start, stop)`."""
    at = start
    while at + 8 <= stop:
        size, kind, header = box_header(data, at, stop)
        if size < header or at + size > stop:
            raise DataError(
                f"the box {kind!r} says {size} bytes, and {stop - at} are left", offset=at
            )
        yield kind, at + header, at + size
        at += size


def box_header(data: bytes | memoryview, at: int, stop: int) -> tuple[int, bytes, int]:
    """Size, type and length of the header of the box at an offset."""
    size, kind = struct.unpack_from(">I4s", data, at)
    if size == 1 and at + 16 <= stop:
        return struct.unpack_from(">Q", data, at + 8)[0], kind, 16
    return (size or stop - at), kind, 8


def find(data: bytes | memoryview, span: Span, *path: bytes) -> Span | None:
    """The content of the first box on a path of types, or None."""
    for kind, begin, end in walk(data, *span):
        if kind == path[0]:
            return (begin, end) if len(path) == 1 else find(data, (begin, end), *path[1:])
    return None


def read_head(reader: RangeReader) -> bytes | memoryview:
    """The start of a file."""
    return read_exactly(reader, 0, min(_FIRST_BYTES, reader.num_bytes))


def locate_moov(
    reader: RangeReader, head: bytes | memoryview
) -> tuple[Span, int, bytes | memoryview] | None:
    """Find the span of `moov`, and the start and bytes of a part that was read for it."""
    at, base, data = 0, 0, head
    for _ in range(_MAX_HOPS):
        if at + 8 > reader.num_bytes:
            return None
        if at < base or at + min(16, reader.num_bytes - at) > base + len(data):
            base = at
            data = read_exactly(reader, at, min(at + _TAIL_BYTES, reader.num_bytes))
        size, kind, header = box_header(data, at - base, reader.num_bytes - base)
        if size < header:
            raise DataError(f"the box {kind!r} says {size} bytes", offset=at)
        if kind == b"moov":
            return (at, at + size), base, data
        at += size
    return None


def read_moov(reader: RangeReader, head: bytes | memoryview) -> bytes:
    """The whole `moov` box in one or two reads more than that of `head`, wherever it lies."""
    located = locate_moov(reader, head)
    if located is None:
        raise DataError(
            f"the mp4 file of {reader.num_bytes} bytes has no 'moov' box, without which nothing "
            "in it can be found: was it cut, or its writer stopped?",
            offset=reader.num_bytes,
        )
    (start, stop), base, data = located
    if stop - start > _MAX_MOOV_BYTES:
        raise DataError(f"the box b'moov' says {stop - start} bytes", offset=start)
    if stop > reader.num_bytes:
        read_exactly(reader, start, stop)
    first = bytes(data[start - base : stop - base])
    if len(first) < stop - start:
        first += bytes(read_exactly(reader, start + len(first), stop))
    return first
