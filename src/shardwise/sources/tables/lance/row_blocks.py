"""Rows that will be asked for soon: blocks of neighbours, read at once and kept within a bound.

A window shuffle asks for all rows of a window, each in another batch, and Lance reads a run of
rows ten times as fast as the same number of single ones. So the first row of a block that is asked
for brings the whole block, and its last row lets it go. A full shuffle of a large table would use
next to nothing of a block: how much of the last blocks was used before they had to go decides
whether new ones are still read on first sight. Only speed depends on it. Any thread may call.
Imports pyarrow, numpy, errors and this package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.errors import DataError
from shardwise.sources.tables.lance.rows import Found, Part

__all__ = ["BlockCache"]

Names = tuple[str, ...]
Key = tuple[Names, int]
Take = Callable[[NDArray[np.int64], Names], pa.RecordBatch]

# Rows in a block: half a lane's window, more where rows are small.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK_BYTES = 512, 4096, 64 << 10
# Blocks that must have room; rows too large for that are read one by one.
_FEWEST_BLOCKS = 256
# Blocks that are read at a time: what is read is held twice for a moment.
_BLOCKS_AT_A_TIME = 32
# Below this share of rows used, a row by itself is cheaper than its part in a block.
_LEAST_USE = 1 / 16
# Rows of a block asked for before it is read, where blocks are hardly used.
_PATIENCE = 4


@dataclass(slots=True)
class _Block:
    """Rows that are held, and how many of them were asked for."""

    rows: Part
    num_used: int = 0


class BlockCache:
    """Reads rows by id, and keeps blocks of them.

    Args:
        take: reads rows by ids that ascend without repeats.
        num_rows: how many ids there are.
        max_bytes: what all blocks may hold together, in memory of this process.
    """

    def __init__(self, take: Take, *, num_rows: int, max_bytes: int) -> None:
        self._take = take
        self._num_rows = num_rows
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: dict[Key, _Block] = {}
        self._reading: dict[Key, Future[Part | None]] = {}
        self._seen: dict[Key, int] = {}
        self._damaged: set[Key] = set()
        self._sizes: dict[Names, int] = {}
        self._num_bytes = 0
        self._use = 1.0

    @property
    def num_bytes(self) -> int:
        """What the blocks hold now."""
        return self._num_bytes

    def read(self, ids: NDArray[np.int64], names: Names) -> Found:
        """Rows in the order of `ids`, repeats allowed.

        Args:
            ids: int64 `[rows]`, one or more.
            names: the columns.
        """
        size = self._sizes.get(names)
        if size:
            return self._find(ids, names, size)
        wanted, back = np.unique(ids, return_inverse=True)
        batch = self._take(wanted, names)
        if size is None:
            self._sizes[names] = self._block_rows(batch)
        return Found([Part(batch)], np.zeros(len(ids), np.int64), back)

    def _block_rows(self, sample: pa.RecordBatch) -> int:
        """Rows in a block of rows like these; 0 where there shall be none."""
        row_bytes = max(1, int(sample.nbytes) // sample.num_rows)
        size = min(_MOST_ROWS, max(_FEWEST_ROWS, _BLOCK_BYTES // row_bytes))
        return size if size * row_bytes * _FEWEST_BLOCKS <= self._max_bytes else 0

    def _find(self, ids: NDArray[np.int64], names: Names, size: int) -> Found:
        numbers, inverse, counts = np.unique(ids // size, return_inverse=True, return_counts=True)
        asked: dict[int, int] = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        held, to_read, awaited = self._look_up(names, asked)
        # Rows of blocks that are neither held nor to be read are read by themselves.
        there = {*held, *to_read, *awaited}
        is_loose = np.array([block not in there for block in asked])
        loose = np.unique(ids[is_loose[inverse]])
        is_read = False
        try:
            self._read(names, size, held, {block: asked[block] for block in to_read})
            is_read = True
        except DataError:
            # A neighbour that nobody asked for may be the damaged one.
            self._give_up(names, to_read)
        finally:
            self._end(names, to_read)
        if not is_read:
            return self._find(ids, names, size)
        parts = [Part(self._take(loose, names))] if len(loose) else []
        for block, future in awaited.items():
            part = future.result()
            if part is None:
                # Whoever read it failed: this thread finds out by itself.
                return self._find(ids, names, size)
            held[block] = part
            self._use_up((names, block), asked[block])
        part_of = {block: len(parts) + place for place, block in enumerate(held)}
        where = np.array([part_of.get(block, 0) for block in asked], np.int64)[inverse]
        rows = ids % size
        if len(loose):
            alone = is_loose[inverse]
            rows[alone] = np.searchsorted(loose, ids[alone])
        return Found([*parts, *held.values()], where, rows)

    def _read(
        self, names: Names, size: int, held: dict[int, Part], asked: Mapping[int, int]
    ) -> None:
        """Read whole blocks, of which so many rows are asked for, into `held`."""
        blocks = sorted(asked)
        for at in range(0, len(blocks), _BLOCKS_AT_A_TIME):
            spans = [
                np.arange(block * size, min((block + 1) * size, self._num_rows), dtype=np.int64)
                for block in blocks[at : at + _BLOCKS_AT_A_TIME]
            ]
            read = self._take(np.concatenate(spans), names)
            start = 0
            for block, span in zip(blocks[at:], spans, strict=False):
                # A copy: the block must not hold all that was read with it.
                part = held[block] = Part(pa.concat_batches([read.slice(start, len(span))]))
                self._keep((names, block), part, asked[block])
                start += len(span)

    def _look_up(
        self, names: Names, asked: Mapping[int, int]
    ) -> tuple[dict[int, Part], set[int], dict[int, Future[Part | None]]]:
        """Blocks that are held, those to be read here, and those that other threads read now.

        Args:
            names: the columns.
            asked: how many rows of each block are asked for.
        """
        held: dict[int, Part] = {}
        to_read: set[int] = set()
        awaited: dict[int, Future[Part | None]] = {}
        with self._lock:
            for number, count in asked.items():
                block = self._blocks.get((names, number))
                if block is not None:
                    held[number] = block.rows
                    self._count((names, number), block, count)
                elif (names, number) in self._reading:
                    awaited[number] = self._reading[names, number]
                elif self._is_worth_it((names, number), count):
                    self._reading[names, number] = Future()
                    to_read.add(number)
        return held, to_read, awaited

    def _end(self, names: Names, numbers: Collection[int]) -> None:
        """Tell those who wait for blocks that were not read after all."""
        with self._lock:
            left = [self._reading.pop((names, number), None) for number in numbers]
        for future in left:
            if future is not None:
                future.set_result(None)

    def _use_up(self, key: Key, count: int) -> None:
        """Count rows of a block that another thread has read, if it is still there."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._count(key, block, count)

    def _give_up(self, names: Names, numbers: Collection[int]) -> None:
        """Read the rows of these blocks by themselves from now on."""
        with self._lock:
            self._damaged.update((names, number) for number in numbers)

    def _keep(self, key: Key, rows: Part, count: int) -> None:
        with self._lock:
            future = self._reading.pop(key)
            block = self._blocks[key] = _Block(rows)
            self._num_bytes += block.rows.num_bytes
            self._count(key, block, count)
            # The oldest go first: they are the ones that are nearly used up.
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._blocks)))
        future.set_result(rows)

    # What follows is called under the lock.

    def _is_worth_it(self, key: Key, count: int) -> bool:
        """Whether a block shall be read, of which so many rows are asked for now."""
        if key in self._damaged:
            return False
        if self._use >= _LEAST_USE:
            return True
        seen = self._seen.pop(key, 0) + count
        if seen >= _PATIENCE:
            return True
        self._seen[key] = seen
        # As many as there is room for: a block that would be gone by its next row is not worth it.
        if len(self._seen) > max(_FEWEST_BLOCKS, len(self._blocks)):
            del self._seen[next(iter(self._seen))]
        return False

    def _count(self, key: Key, block: _Block, count: int) -> None:
        block.num_used += count
        if block.num_used >= block.rows.num_rows:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        block = self._blocks.pop(key)
        self._num_bytes -= block.rows.num_bytes
        share = min(1.0, block.num_used / block.rows.num_rows)
        self._use += (share - self._use) / 64
