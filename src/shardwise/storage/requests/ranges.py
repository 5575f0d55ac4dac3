"""Which requests bring a set of ranges: close ones joined, long ones cut. Pure.

Imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Span", "Wanted", "join_spans", "spans_of"]


class Span(NamedTuple):
    """Bytes [start, stop) of a file, wanted at `begin` in a buffer."""

    start: int
    stop: int
    begin: int


class Wanted(NamedTuple):
    """One request: bytes [start, stop) of a file, and the spans that they hold."""

    start: int
    stop: int
    spans: tuple[Span, ...]


def spans_of(offsets: Sequence[int], ends: Sequence[int], begin: int) -> list[Span]:
    """The spans of `File.read_spans`; empty ones are left out.

    >>> spans_of([100, 0], [5, 8], 0)
    [Span(start=100, stop=105, begin=0), Span(start=0, stop=3, begin=5)]
    """
    spans = []
    for offset, end in zip(offsets, ends, strict=True):
        if offset < 0 or end < begin:
            raise ValueError(f"offset={offset}, length={end - begin}: neither may be negative")
        if end > begin:
            spans.append(Span(offset, offset + end - begin, begin))
        begin = end
    return spans


def join_spans(spans: Iterable[Span], *, gap_bytes: int, part_bytes: int) -> list[Wanted]:
    """Requests for some spans, in the order of the file.

    Args:
        spans: in any order; they may overlap.
        gap_bytes: spans so close to each other are asked for together.
        part_bytes: a request is no longer than that: long spans come in several at once.
    """
    found: list[Wanted] = []
    held: list[Span] = []
    start = stop = 0
    for span in sorted(_cut(spans, part_bytes)):
        fits = held and span.start <= stop + gap_bytes
        if fits and max(stop, span.stop) - start <= part_bytes:
            stop = max(stop, span.stop)
            held.append(span)
            continue
        if held:
            found.append(Wanted(start, stop, tuple(held)))
        start, stop, held = span.start, span.stop, [span]
    if held:
        found.append(Wanted(start, stop, tuple(held)))
    return found


def _cut(spans: Iterable[Span], part_bytes: int) -> Iterable[Span]:
    for start, stop, begin in spans:
        # Equal parts: a short rest would cost a request of its own.
        num_parts = -(-(stop - start) // part_bytes)
        length = -(-(stop - start) // num_parts)
        for at in range(start, stop, length):
            yield Span(at, min(at + length, stop), begin + at - start)
