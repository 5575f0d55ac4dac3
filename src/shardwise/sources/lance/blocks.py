"""Rows that will be asked for soon: blocks of neighbours, read at once and kept within a bound.

A window shuffle asks for all rows of a window, each in another batch, and Lance reads a run of
rows ten times as fast as the same number of single ones. So the first row of a block that is asked
for brings the whole block, and its last row lets it go. A full shuffle of a large table would use
next to nothing of a block: how much of the last blocks was used before they had to go decides
whether new ones are still read on first sight. Only speed depends on it. Any thread may call.
Imports pyarrow, numpy and errors.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.errors import DataError

__all__ = ["BlockCache"]

Names = tuple[str, ...]
Key = tuple[Names, int]
Take = Callable[[NDArray[np.int64], Names], pa.RecordBatch]

# Rows in a block: half a lane's window, more where rows are small.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK_BYTES = 512, 4096, 64 << 10
# Blocks that must have room; rows too large for that are read one by one.
_FEWEST_BLOCKS = 256
# Below this share of rows used, a row by itself is cheaper than its part in a block.
_LEAST_USE = 1 / 16
# Rows of a block asked for before it is read, where blocks are hardly used.
_PATIENCE = 4


@dataclass(slots=True)
class _Block:
    """Rows that are held, how many bytes they are, and how many were asked for."""

    rows: pa.RecordBatch
    num_bytes: int
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
        self._seen: dict[Key, int] = {}
        self._damaged: set[Key] = set()
        self._sizes: dict[Names, int] = {}
        self._num_bytes = 0
        self._use = 1.0

    @property
    def num_bytes(self) -> int:
        """What the blocks hold now."""
        return self._num_bytes

    def read(self, ids: NDArray[np.int64], names: Names) -> pa.RecordBatch:
        """Rows in the order of `ids`, repeats allowed.

        Args:
            ids: int64 `[rows]`, one or more.
            names: the columns.
        """
        size = self._sizes.get(names)
        if size:
            return self._gather(ids, names, size)
        wanted, back = np.unique(ids, return_inverse=True)
        batch = self._take(wanted, names)
        if size is None:
            self._sizes[names] = self._block_rows(batch)
        return _rows_of(batch, back)

    def _block_rows(self, sample: pa.RecordBatch) -> int:
        """Rows in a block of rows like these; 0 where there shall be none."""
        row_bytes = max(1, int(sample.nbytes) // sample.num_rows)
        size = min(_MOST_ROWS, max(_FEWEST_ROWS, _BLOCK_BYTES // row_bytes))
        return size if size * row_bytes * _FEWEST_BLOCKS <= self._max_bytes else 0

    def _gather(self, ids: NDArray[np.int64], names: Names, size: int) -> pa.RecordBatch:
        number = ids // size
        numbers = number.tolist()
        asked = Counter(numbers)
        held, to_read = self._look_up(names, asked)
        if len(held) < len(asked):
            try:
                return self._read(ids, names, size, held, {b: asked[b] for b in to_read})
            except DataError:
                if not to_read:
                    raise
                # A neighbour that nobody asked for may be the damaged one.
                self._give_up(names, to_read)
                return self._gather(ids, names, size)
        within = (ids - number * size).tolist()
        if len(held) == 1 and within[-1] - within[0] == len(ids) - 1 and (np.diff(ids) == 1).all():
            return held[numbers[0]].slice(within[0], len(ids))
        slice_of = {block: rows.slice for block, rows in held.items()}
        return pa.concat_batches(
            [slice_of[block](row, 1) for block, row in zip(numbers, within, strict=True)]
        )

    def _read(
        self,
        ids: NDArray[np.int64],
        names: Names,
        size: int,
        held: dict[int, pa.RecordBatch],
        asked: Mapping[int, int],
    ) -> pa.RecordBatch:
        """Rows of which some are not held: whole blocks, asked for so often, and single rows."""
        number = ids // size
        spans = {
            block: np.arange(block * size, min((block + 1) * size, self._num_rows), dtype=np.int64)
            for block in asked
        }
        loose = ids[~np.isin(number, [*held, *asked])]
        wanted = np.unique(np.concatenate([loose, *spans.values()]))
        read = self._take(wanted, names)
        for block, span in spans.items():
            start = int(np.searchsorted(wanted, span[0]))
            # A copy: the block must not hold all that was read with it.
            held[block] = pa.concat_batches([read.slice(start, len(span))])
            self._keep((names, block), held[block], asked[block])
        if not held:
            return _rows_of(read, np.searchsorted(wanted, ids))
        slices = []
        for block, row, place in zip(
            number.tolist(),
            (ids - number * size).tolist(),
            np.searchsorted(wanted, ids).tolist(),
            strict=True,
        ):
            rows = held.get(block)
            slices.append(read.slice(place, 1) if rows is None else rows.slice(row, 1))
        return pa.concat_batches(slices)

    def _look_up(
        self, names: Names, asked: Mapping[int, int]
    ) -> tuple[dict[int, pa.RecordBatch], list[int]]:
        """Blocks that are held, and those to be read; asked for are so many rows of each."""
        held, to_read = {}, []
        with self._lock:
            for number, count in asked.items():
                block = self._blocks.get((names, number))
                if block is not None:
                    held[number] = block.rows
                    self._count((names, number), block, count)
                elif self._is_worth_it((names, number), count):
                    to_read.append(number)
        return held, to_read

    def _give_up(self, names: Names, numbers: list[int]) -> None:
        """Read the rows of these blocks by themselves from now on."""
        with self._lock:
            self._damaged.update((names, number) for number in numbers)

    def _keep(self, key: Key, rows: pa.RecordBatch, count: int) -> None:
        with self._lock:
            if key in self._blocks:  # another thread has read it, too
                return
            block = self._blocks[key] = _Block(rows, rows.nbytes)
            self._num_bytes += block.num_bytes
            self._count(key, block, count)
            # The oldest go first: they are the ones that are nearly used up.
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._blocks)))

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
        self._num_bytes -= block.num_bytes
        share = min(1.0, block.num_used / block.rows.num_rows)
        self._use += (share - self._use) / 64


def _rows_of(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a batch; itself where these are all, in order."""
    if len(rows) == batch.num_rows and (np.diff(rows) == 1).all():
        return batch
    return batch.take(pa.array(rows))
