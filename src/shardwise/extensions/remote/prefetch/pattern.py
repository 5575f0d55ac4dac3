"""The access pattern of a file: sequential, a moving window, or random.

Detected from the reads themselves, so that no user must declare it, and a shuffle that jumps never
pays for bytes that it does not need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from shardwise.storage.protocol import ByteRange

Reading = Literal["random", "sequential", "window"]

_CALLS = 8
_RANGES = 16
# Sequential: the last reads cover 60 % of the bytes between the first and the last of them, 75 % of
# their pairs ascend, and they are 2 MiB at least.
_DENSE = 0.6
_ASCENDING = 0.75
_LEAST_CALLS = 3
_NEAR_BEGINNING = 1 << 20
_LEAST_BYTES = 2 << 20
# Window: the last 16 ranges lie within 1/8 of the file, not ascending, and cover 1/12 of the bytes
# between them. Uniformly random ranges do so once in 10**13 times.
_WINDOW_OF_FILE = 1 / 8
_WINDOW_DENSE = 1 / 12


class Pattern:
    """The last reads of a file, and their pattern.

    Attributes:
        position: the end of the bytes read in sequence.
        run_bytes: read in sequence so far.
    """

    __slots__ = ("_calls", "_ranges", "position", "run_bytes")

    def __init__(self) -> None:
        self._calls: deque[tuple[int, int, int]] = deque(maxlen=_CALLS)
        self._ranges: deque[ByteRange] = deque(maxlen=_RANGES)
        self.position = 0
        self.run_bytes = 0

    @property
    def begin(self) -> int:
        """The lowest offset of the last reads."""
        return min((start for start, _, _ in self._calls), default=0)

    def note(self, ranges: Sequence[ByteRange], num_bytes: int, *, follows: int = 0) -> Reading:
        """Add the ranges of one call, of a file of `num_bytes`.

        `follows` bytes were read in sequence of the file before, up to its end: a file that is then
        read from its beginning is likely to be read on.
        """
        self._ranges.extend(ranges[-_RANGES:])
        starts, stops, _ = zip(*ranges, strict=True)
        start, stop, length = min(starts), max(stops), sum(stops) - sum(starts)
        self._calls.append((start, stop, length))
        if len(self._calls) == 1 and start < _NEAR_BEGINNING and length >= _DENSE * (stop - start):
            # 2 MiB or more from the beginning, nearly contiguous: no sample of a shuffle.
            self.run_bytes = follows if follows or length < _LEAST_BYTES else 1
        is_begun = self.run_bytes > 0 and len(self._calls) < _LEAST_CALLS
        if is_begun or self._is_sequential():
            _, stops, lengths = zip(*self._calls, strict=True)
            self.position = max(stops)
            self.run_bytes = max(self.run_bytes + length, sum(lengths))
            return "sequential"
        self.run_bytes = 0
        return "window" if self._is_window(num_bytes) else "random"

    def _is_sequential(self) -> bool:
        if len(self._calls) < _LEAST_CALLS:
            return False
        starts, stops, lengths = zip(*self._calls, strict=True)
        read, hull = sum(lengths), max(stops) - min(starts)
        return read >= _LEAST_BYTES and read >= _DENSE * hull and _ascent(starts) >= _ASCENDING

    def _is_window(self, num_bytes: int) -> bool:
        if len(self._ranges) < _RANGES:
            return False
        starts, stops, _ = zip(*self._ranges, strict=True)
        hull, read = max(stops) - min(starts), sum(stops) - sum(starts)
        if hull > _WINDOW_OF_FILE * num_bytes or read < _WINDOW_DENSE * hull:
            return False
        # A scan of headers ascends, and needs none of the bytes between them.
        return _ascent(starts) < 1


def _ascent(values: Sequence[int]) -> float:
    """The share of pairs, near or far, that ascend."""
    pairs = [a < b for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum(pairs) / len(pairs)
