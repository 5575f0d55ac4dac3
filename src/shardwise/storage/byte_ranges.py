"""Byte ranges, the requests that read them (near ranges joined, long ones cut), and replies.

Received bytes are left where the reply put them until the reading thread copies them: the event
loop's thread is not slowed by copies, and never writes into a reader's buffer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ByteRange(NamedTuple):
    """Bytes [start, stop) of a file, which belong at `begin` in the reader's buffer."""

    start: int
    stop: int
    begin: int

    def cut(self, start: int, stop: int) -> ByteRange:
        """The part between two offsets of the file, both within the range."""
        return ByteRange(start, stop, self.begin + start - self.start)


# Stands for all of a file where one of unknown version is announced; a range like any otherwise.
WHOLE = ByteRange(0, 256 << 10, 0)


def num_bytes_of(ranges: Iterable[ByteRange]) -> int:
    """The bytes of some ranges."""
    return sum(each.stop - each.start for each in ranges)


def byte_ranges(offsets: Sequence[int], ends: Sequence[int], begin: int) -> list[ByteRange]:
    """The arguments of `File.read_spans` as ranges, without the empty ones.

    >>> byte_ranges([100, 0], [5, 8], 0)
    [ByteRange(start=100, stop=105, begin=0), ByteRange(start=0, stop=3, begin=5)]

    Raises:
        ValueError: an offset or a length is negative.
    """
    ranges = []
    for offset, end in zip(offsets, ends, strict=True):
        if offset < 0 or end < begin:
            raise ValueError(f"offset={offset}, length={end - begin}: neither may be negative")
        if end > begin:
            ranges.append(ByteRange(offset, offset + end - begin, begin))
        begin = end
    return ranges


class RangeRequest(NamedTuple):
    """One request: bytes [start, stop) of a file, and the ranges that they cover."""

    start: int
    stop: int
    ranges: tuple[ByteRange, ...]


def coalesce(
    ranges: Iterable[ByteRange], *, gap_bytes: int, max_request_bytes: int
) -> list[RangeRequest]:
    """The requests for some ranges, which may overlap, in the order of the file.

    Ranges at most `gap_bytes` apart share a request; one longer than `max_request_bytes` is read by
    several at once.
    """
    requests: list[RangeRequest] = []
    joined: list[ByteRange] = []
    start = stop = 0
    for each in sorted(_cut_ranges(ranges, max_request_bytes)):
        is_near = joined and each.start <= stop + gap_bytes
        if is_near and max(stop, each.stop) - start <= max_request_bytes:
            stop = max(stop, each.stop)
            joined.append(each)
            continue
        if joined:
            requests.append(RangeRequest(start, stop, tuple(joined)))
        start, stop, joined = each.start, each.stop, [each]
    if joined:
        requests.append(RangeRequest(start, stop, tuple(joined)))
    return requests


def _cut_ranges(ranges: Iterable[ByteRange], max_bytes: int) -> Iterable[ByteRange]:
    for each in ranges:
        # Equal parts: a short rest would cost a separate request.
        num_parts = -(-(each.stop - each.start) // max_bytes)
        length = -(-(each.stop - each.start) // num_parts)
        for start in range(each.start, each.stop, length):
            yield each.cut(start, min(start + length, each.stop))


class ReceivedBytes(NamedTuple):
    """Bytes that belong at offset `begin` of the reader's buffer."""

    begin: int
    data: memoryview


def received_for(request: RangeRequest, data: memoryview) -> list[ReceivedBytes]:
    """The bytes of each range of a request, from the bytes of all of it."""
    return [
        ReceivedBytes(begin, data[start - request.start : stop - request.start])
        for start, stop, begin in request.ranges
    ]


def copy_received(received: Iterable[ReceivedBytes], buffer: memoryview) -> None:
    """Copy received bytes to where they belong in a writable contiguous buffer."""
    view = memoryview(buffer).cast("B")
    for begin, data in received:
        view[begin : begin + len(data)] = data


def payloads_of(
    received: Sequence[ReceivedBytes], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None]:
    """Parts of the buffer that received bytes would fill, each copied once.

    The received bytes cover the parts, in any order. A negative length gives None.

    >>> received = [ReceivedBytes(3, memoryview(b"def")), ReceivedBytes(0, memoryview(b"abc"))]
    >>> payloads_of(received, [0, 1, 5, 0], [3, 4, 0, -1])
    [b'abc', b'bcde', b'', None]
    """
    ordered = sorted(received)
    begins = [each.begin for each in ordered]
    payloads: list[bytes | None] = []
    for start, length in zip(starts, lengths, strict=True):
        if length <= 0:
            payloads.append(None if length else b"")
            continue
        at = bisect_right(begins, start) - 1
        begin, data = ordered[at]
        stop = start + length
        if stop <= begin + len(data):
            payloads.append(bytes(data[start - begin : stop - begin]))
            continue
        parts = []
        for begin, data in ordered[at : bisect_right(begins, stop - 1)]:
            parts.append(data[max(0, start - begin) : stop - begin])
        payloads.append(b"".join(parts))
    return payloads
