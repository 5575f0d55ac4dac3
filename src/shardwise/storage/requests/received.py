"""What was read, where it lies in memory: the thread that wants it copies it.

Bytes that come from a store lie in the memory of its replies. The thread that speaks to stores only
says where: it is not held up by copies, and writes into nobody's buffer. Pure; imports nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Piece", "copy_pieces", "payloads_of"]


class Piece(NamedTuple):
    """Bytes that belong at `begin` in a buffer."""

    begin: int
    data: memoryview


def copy_pieces(pieces: Iterable[Piece], buffer: memoryview) -> None:
    """Copy all of them to where they belong in a writable contiguous buffer."""
    view = memoryview(buffer).cast("B")
    for begin, data in pieces:
        view[begin : begin + len(data)] = data


def payloads_of(
    pieces: Sequence[Piece], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None]:
    """Parts of a buffer that pieces would fill, each copied once.

    Args:
        pieces: in any order; together they fill what is asked for.
        starts: where each part begins in the buffer.
        lengths: bytes of each; negative for None.

    >>> pieces = [Piece(3, memoryview(b"def")), Piece(0, memoryview(b"abc"))]
    >>> payloads_of(pieces, [0, 1, 5, 0], [3, 4, 0, -1])
    [b'abc', b'bcde', b'', None]
    """
    ordered = sorted(pieces)
    begins = [piece.begin for piece in ordered]
    found: list[bytes | None] = []
    for start, length in zip(starts, lengths, strict=True):
        if length <= 0:
            found.append(None if length else b"")
            continue
        at = bisect_right(begins, start) - 1
        begin, data = ordered[at]
        stop = start + length
        if stop <= begin + len(data):
            found.append(bytes(data[start - begin : stop - begin]))
            continue
        parts = []
        for begin, data in ordered[at : bisect_right(begins, stop - 1)]:
            parts.append(data[max(0, start - begin) : stop - begin])
        found.append(b"".join(parts))
    return found
