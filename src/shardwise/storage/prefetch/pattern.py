"""How a file is being read: in sequence, in a window that moves, or here and there.

Found out from the reads themselves, so that nobody has to say it, and so that a shuffle that jumps
never pays for bytes that it does not want. Pure; imports nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

__all__ = ["Pattern", "Reading"]

Reading = Literal["random", "sequential", "window"]

_CALLS = 8
_RANGES = 16
# In sequence: the last reads cover this share of what lies between the first and the last of them,
# most of them ascend, and they came to so many bytes.
_DENSE = 0.6
_ASCENDING = 0.75
_LEAST_CALLS = 3
_NEAR_BEGINNING = 1 << 20
_LEAST_BYTES = 2 << 20
# In a window: the last ranges lie within this share of the file, in no order, and are this share
# of what lies between them. By chance, ranges from everywhere do so once in 10**13 times.
_WINDOW_OF_FILE = 1 / 8
_WINDOW_DENSE = 1 / 12


class Pattern:
    """The last reads of a file, and what they look like.

    Attributes:
        position: where reading in sequence has come to.
        run_bytes: what was read in sequence so far.
    """

    __slots__ = ("_calls", "_ranges", "position", "run_bytes")

    def __init__(self) -> None:
        self._calls: deque[tuple[int, int, int]] = deque(maxlen=_CALLS)
        self._ranges: deque[tuple[int, int]] = deque(maxlen=_RANGES)
        self.position = 0
        self.run_bytes = 0

    @property
    def begin(self) -> int:
        """Where the first of the last reads began."""
        return min((start for start, _, _ in self._calls), default=0)

    def note(
        self, ranges: Sequence[tuple[int, int]], num_bytes: int, *, follows: int = 0
    ) -> Reading:
        """Take in one call's ranges of a file.

        Args:
            ranges: start and stop of each, at least one.
            num_bytes: the file's length.
            follows: bytes that were read in sequence of the file before, up to its end: if this
                one is read from its beginning, it is likely to be read on.
        """
        self._ranges.extend(ranges[-_RANGES:])
        start = min(start for start, _ in ranges)
        stop = max(stop for _, stop in ranges)
        length = sum(stop - start for start, stop in ranges)
        self._calls.append((start, stop, length))
        if len(self._calls) == 1 and start < _NEAR_BEGINNING and length >= _DENSE * (stop - start):
            # So much at the beginning, and little left out, is no sample of a shuffle.
            self.run_bytes = follows if follows or length < _LEAST_BYTES else 1
        is_begun = self.run_bytes > 0 and len(self._calls) < _LEAST_CALLS
        if is_begun or self._is_sequential():
            self.position = max(stop for _, stop, _ in self._calls)
            before = sum(each for _, _, each in list(self._calls)[:-1])
            self.run_bytes = max(self.run_bytes, before) + length
            return "sequential"
        self.run_bytes = 0
        return "window" if self._is_window(num_bytes) else "random"

    def _is_sequential(self) -> bool:
        calls = list(self._calls)
        if len(calls) < _LEAST_CALLS:
            return False
        read = sum(length for _, _, length in calls)
        hull = max(stop for _, stop, _ in calls) - min(start for start, _, _ in calls)
        starts = [start for start, _, _ in calls]
        return read >= _LEAST_BYTES and read >= _DENSE * hull and _ascent(starts) >= _ASCENDING

    def _is_window(self, num_bytes: int) -> bool:
        ranges = list(self._ranges)
        if len(ranges) < _RANGES:
            return False
        hull = max(stop for _, stop in ranges) - min(start for start, _ in ranges)
        read = sum(stop - start for start, stop in ranges)
        if hull > _WINDOW_OF_FILE * num_bytes or read < _WINDOW_DENSE * hull:
            return False
        # A scan of headers ascends, and wants nothing of what lies between them.
        return _ascent([start for start, _ in ranges]) < 1


def _ascent(values: Sequence[int]) -> float:
    """The share of pairs, near or far, that ascend."""
    pairs = [a < b for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum(pairs) / len(pairs)
