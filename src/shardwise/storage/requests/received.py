"""Received bytes, left where the reply put them until the reading thread copies them.

The event loop's thread only says where they are: it is not slowed by copies, and never writes into
a reader's buffer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardwise.storage.requests.ranges import RangeRequest

__all__ = ["ReceivedBytes", "copy_received", "payloads_of", "received_for"]


class ReceivedBytes(NamedTuple):
    """Bytes that belong at `begin` in the reader's buffer."""

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

    Args:
        received: in any order; together they cover the parts.
        starts: where each part begins in the buffer.
        lengths: bytes of each; negative for None.

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
