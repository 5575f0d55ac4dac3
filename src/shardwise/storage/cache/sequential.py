"""Sequential reads of a cached file, and the blocks to fetch before they are asked for.

Created by a read that lacked a block, and dropped as soon as it helps nothing: a file whose blocks
are all cached costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.storage.prefetch.pattern import Pattern
from shardwise.storage.requests.ranges import ByteRange

__all__ = ["SequentialDetector"]

_FIRST_BLOCKS_AHEAD = 2
_MAX_BLOCKS_AHEAD = 16
# After 32 reads out of sequence, or 32 blocks that were cached already, stop.
_MAX_IDLE = 32


class SequentialDetector:
    """Detects sequential reads of one file.

    Args:
        block_bytes: the length of a block.
        num_bytes: the file's length.
    """

    __slots__ = ("_block_bytes", "_depth", "_idle", "_next", "_num_bytes", "_pattern")

    def __init__(self, block_bytes: int, num_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._num_bytes = num_bytes
        self._pattern = Pattern()
        self._depth = _FIRST_BLOCKS_AHEAD
        self._next = 0  # the first block that was not prefetched
        self._idle = 0

    @property
    def is_over(self) -> bool:
        """Whether it helped nothing for a while."""
        return self._idle > _MAX_IDLE

    def note(self, ranges: Sequence[ByteRange], *, had_to_wait: bool) -> range:
        """Take in a read; the numbers of the blocks to prefetch now."""
        if self._pattern.note(ranges, self._num_bytes) != "sequential":
            self._next = 0
            self._idle = 0 if had_to_wait else self._idle + 1
            return range(0)
        if had_to_wait:
            self._depth = min(_MAX_BLOCKS_AHEAD, 2 * self._depth)
        size, position = self._block_bytes, self._pattern.position
        # At most twice the bytes read so far may turn out to be wasted.
        depth = min(self._depth, max(1, 2 * self._pattern.run_bytes // size))
        first = max(self._next, position // size)
        self._next = max(self._next, min(position // size + depth, -(-self._num_bytes // size)))
        return range(first, self._next)

    def count(self, *, is_cached: bool) -> None:
        """Count a block to prefetch that was cached already, or was not."""
        self._idle = self._idle + 1 if is_cached else 0
