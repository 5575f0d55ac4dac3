"""Sequential reads of cached files, and the blocks to fetch before they are asked for.

A detector is created by a read that lacked a block, and dropped as soon as it helps nothing: a file
whose blocks are all cached costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.storage.prefetch.pattern import Pattern
from shardwise.storage.requests.ranges import ByteRange

__all__ = ["NextFiles", "SequentialDetector"]

_FIRST_BLOCKS_AHEAD = 2
# 192 MiB with blocks of 4 MiB: some six requests of 32 MiB in flight.
_MAX_BLOCKS_AHEAD = 48
# What is fetched ahead must not evict what was fetched ahead before.
_SHARE_AHEAD = 4
# After 32 reads out of sequence, or 32 blocks that were cached already, stop.
_MAX_IDLE = 32
# After two wrong guesses in a row, fetch nothing of guessed files until a guess is right.
_MAX_WRONG_GUESSES = 2
_MAX_GUESSED = 64


class SequentialDetector:
    """Detects sequential reads of one file.

    Args:
        block_bytes: the length of a block.
        num_bytes: the file's length.
        most_blocks: how many blocks the cache holds.
        after: of the file that is read before this one, if this one is guessed to be next.

    Attributes:
        num_left: blocks to fetch ahead in the files that follow.
        has_begun: whether the last read was the first one in sequence.
    """

    __slots__ = (
        "_block_bytes",
        "_depth",
        "_follows",
        "_idle",
        "_is_sequential",
        "_max_depth",
        "_next",
        "_num_bytes",
        "_pattern",
        "has_begun",
        "num_left",
    )

    def __init__(
        self,
        block_bytes: int,
        num_bytes: int,
        most_blocks: int,
        *,
        after: SequentialDetector | None = None,
    ) -> None:
        self._block_bytes = block_bytes
        self._num_bytes = num_bytes
        self._pattern = Pattern()
        self._max_depth: int = max(1, min(_MAX_BLOCKS_AHEAD, most_blocks // _SHARE_AHEAD))
        self._depth: int = (
            min(_FIRST_BLOCKS_AHEAD, self._max_depth) if after is None else after._depth
        )
        self._follows = 0 if after is None else after._pattern.run_bytes
        # The first block that was not prefetched; behind the file's end, of the files that follow.
        self._next = 0
        self._idle = 0
        self._is_sequential = False
        self.has_begun = False
        self.num_left = 0

    @property
    def is_over(self) -> bool:
        """Whether it helped nothing for a while."""
        return self._idle > _MAX_IDLE

    def note(self, ranges: Sequence[ByteRange], *, had_to_wait: bool) -> range:
        """Take in a read; the numbers of the blocks to prefetch now."""
        reading = self._pattern.note(ranges, self._num_bytes, follows=self._follows)
        self.has_begun = reading == "sequential" and not self._is_sequential
        self._is_sequential = reading == "sequential"
        self.num_left = 0
        if not self._is_sequential:
            self._next = 0
            self._idle = 0 if had_to_wait else self._idle + 1
            return range(0)
        if had_to_wait:
            self._depth = min(self._max_depth, 2 * self._depth)
        size, position = self._block_bytes, self._pattern.position
        # At most twice the bytes read so far may turn out to be wasted.
        depth = min(self._depth, max(1, 2 * self._pattern.run_bytes // size))
        num_blocks = -(-self._num_bytes // size)
        first, stop = max(self._next, position // size), position // size + depth
        # Half the depth at once, so that requests are long.
        if stop - first < depth // 2:
            return range(0)
        self._next = stop
        self.num_left = max(0, stop - num_blocks)
        return range(first, min(stop, num_blocks))

    def follow(self, before: SequentialDetector) -> range:
        """The first blocks of this file, to prefetch while the one before it is read.

        What is left for the files behind it goes to `before.num_left`.
        """
        num_blocks = -(-self._num_bytes // self._block_bytes)
        first, left = self._next, before.num_left
        self._next = max(first, left)
        before.num_left = max(0, left - num_blocks)
        return range(first, min(left, num_blocks))

    def count(self, *, is_cached: bool) -> None:
        """Count a block to prefetch that was cached already, or was not."""
        self._idle = self._idle + 1 if is_cached else 0


class NextFiles:
    """Guesses which files are read next, for all files of a cache in this process."""

    def __init__(self) -> None:
        # In the order of the guesses.
        self._guessed: dict[str, None] = {}
        self._num_wrong = 0

    def guess(self, url: str) -> bool:
        """Guess that a file is read next; whether recent guesses were right."""
        self._guessed[url] = None
        while len(self._guessed) > _MAX_GUESSED:
            self._guessed.pop(next(iter(self._guessed)), None)
        return self._num_wrong < _MAX_WRONG_GUESSES

    def note_begun(self, url: str) -> None:
        """Note that a file begins to be read in sequence."""
        if url in self._guessed:
            del self._guessed[url]
            self._num_wrong = 0
        elif self._guessed:
            self._num_wrong += 1
