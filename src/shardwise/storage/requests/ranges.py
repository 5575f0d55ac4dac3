"""Byte ranges of a file, and the requests that read them: near ranges joined, long ones cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["ByteRange", "RangeRequest", "byte_ranges", "coalesce"]


class ByteRange(NamedTuple):
    """Bytes [start, stop) of a file, which belong at `begin` in the reader's buffer."""

    start: int
    stop: int
    begin: int

    def cut(self, start: int, stop: int) -> ByteRange:
        """The part between two offsets of the file, both within the range."""
        return ByteRange(start, stop, self.begin + start - self.start)

    def by_block(self, block_bytes: int) -> Iterator[tuple[int, ByteRange]]:
        """The parts in the file's blocks of `block_bytes`, each after its block's number.

        >>> list(ByteRange(5, 12, 0).by_block(10))
        [(0, ByteRange(start=5, stop=10, begin=0)), (1, ByteRange(start=10, stop=12, begin=5))]
        """
        start = self.start
        while start < self.stop:
            number = start // block_bytes
            stop = min(self.stop, (number + 1) * block_bytes)
            yield number, self.cut(start, stop)
            start = stop


class RangeRequest(NamedTuple):
    """One request: bytes [start, stop) of a file, and the ranges that they cover."""

    start: int
    stop: int
    ranges: tuple[ByteRange, ...]


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


def coalesce(
    ranges: Iterable[ByteRange], *, gap_bytes: int, max_request_bytes: int
) -> list[RangeRequest]:
    """The requests for some ranges, in the order of the file.

    Args:
        ranges: in any order; they may overlap.
        gap_bytes: ranges at most this far apart share a request.
        max_request_bytes: a longer range is read by several requests at once.
    """
    requests: list[RangeRequest] = []
    joined: list[ByteRange] = []
    start = stop = 0
    for each in sorted(_cut(ranges, max_request_bytes)):
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


def _cut(ranges: Iterable[ByteRange], max_bytes: int) -> Iterable[ByteRange]:
    for each in ranges:
        # Equal parts: a short rest would cost a request of its own.
        num_parts = -(-(each.stop - each.start) // max_bytes)
        length = -(-(each.stop - each.start) // num_parts)
        for start in range(each.start, each.stop, length):
            yield each.cut(start, min(start + length, each.stop))
