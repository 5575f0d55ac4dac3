"""Which blocks to fetch before they are asked for, while a file is read in sequence.

Begun by a read that lacked a block, and over as soon as it is of no use: a file whose blocks are
all there costs nothing here. Imports the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.storage.prefetch.pattern import Pattern

__all__ = ["Streak"]

_FIRST_AHEAD = 2
_MOST_AHEAD = 16
# So many reads in no sequence, or blocks that were there anyway, end it.
_PATIENCE = 32


class Streak:
    """How a file is being read.

    Args:
        block_bytes: the length of a block.
        num_bytes: the file's length.
    """

    __slots__ = ("_block_bytes", "_depth", "_idle", "_next", "_num_bytes", "_pattern")

    def __init__(self, block_bytes: int, num_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._num_bytes = num_bytes
        self._pattern = Pattern()
        self._depth = _FIRST_AHEAD
        self._next = 0  # blocks before this one were looked after
        self._idle = 0

    @property
    def is_over(self) -> bool:
        """Whether it was of no use for a while."""
        return self._idle > _PATIENCE

    def note(
        self, read: tuple[Any, Sequence[int], Sequence[int], int], *, had_to_wait: bool
    ) -> range:
        """Take in a read (a file, `offsets`, `ends`, `begin`); the blocks to look after now."""
        _, offsets, ends, begin = read
        ranges = []
        for offset, end in zip(offsets, ends, strict=True):
            if end > begin:
                ranges.append((offset, offset + end - begin))
            begin = end
        if self._pattern.note(ranges, self._num_bytes) != "sequential":
            self._next = 0
            self._idle = 0 if had_to_wait else self._idle + 1
            return range(0)
        if had_to_wait:
            self._depth = min(_MOST_AHEAD, 2 * self._depth)
        size, position = self._block_bytes, self._pattern.position
        # Twice what was read so far is as much as may turn out to be for nothing.
        depth = min(self._depth, max(1, 2 * self._pattern.run_bytes // size))
        first = max(self._next, position // size)
        self._next = max(self._next, min(position // size + depth, -(-self._num_bytes // size)))
        return range(first, self._next)

    def count(self, *, is_there: bool) -> None:
        """Say whether a block was there already."""
        self._idle = self._idle + 1 if is_there else 0
