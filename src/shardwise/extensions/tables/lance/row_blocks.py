"""A cache of rows that will be read soon: blocks of neighbours, within a bound of bytes.

A window shuffle reads all rows of a window, each in another batch, and Lance reads a run of rows
ten times as fast as the same number of single ones. So the first row of a block that is read brings
the whole block, and its last row evicts it. A full shuffle of a large table would use next to
nothing of a block: the share of the last blocks that was used before they were evicted decides
whether new ones are still read at the first row. Only speed depends on it. Any thread may call.
A batch's columns are converted once, and rows are gathered batch by batch, never one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.columns import Column
from shardwise.base.errors import DataError
from shardwise.extensions.tables.arrow.columns import BatchColumns, gather

# Bytes a row and column beside Arrow's own: an offset and a length, int64 each.
_ROW_BYTES = 16


class RowBatch(BatchColumns):
    """Rows that were read together; `row_bytes` is a row's mean, `num_bytes` the memory of all."""

    __slots__ = ("num_bytes", "num_rows", "row_bytes")

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__(batch)
        self.num_rows: int = batch.num_rows
        self.row_bytes: float = batch.nbytes / max(1, batch.num_rows)
        self.num_bytes: int = batch.nbytes + _ROW_BYTES * batch.num_rows * batch.num_columns


@dataclass(frozen=True)
class BatchRows:
    """Rows of several batches in a read's order: the batch of each, and its row in that."""

    batches: Sequence[RowBatch]
    batch_of: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """The bytes of the rows, by the means of their batches."""
        counts = np.bincount(self.batch_of, minlength=len(self.batches))
        return round(float(counts @ np.array([batch.row_bytes for batch in self.batches])))

    def columns(self, ids: NDArray[np.int64], names: Sequence[str], url: str) -> dict[str, Column]:
        """The fields of the rows; their ids and the table's url are for messages."""
        return gather(
            names,
            self.batch_of,
            self.rows,
            lambda number: self.batches[number].columns(names),
            ids=ids,
            locate=lambda row: (url, str(ids[row])),
        )


Names = tuple[str, ...]
Key = tuple[Names, int]
Take = Callable[[NDArray[np.int64], Names], pa.RecordBatch]

# Rows in a block: half a lane's window, more where rows are small.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK_BYTES = 512, 4096, 64 << 10
# Blocks that must have room; rows too large for that are read one by one.
_FEWEST_BLOCKS = 256
# Blocks in one read: while they are copied out of it, they take twice the memory.
_BLOCKS_A_READ = 32
# Below this share of rows used, a row by itself is cheaper than its part in a block.
_LEAST_USE = 1 / 16
# Reads of a block's rows before the block is read, where blocks are hardly used.
_PATIENCE = 4


@dataclass(slots=True, eq=False)
class _Block:
    """Rows in the cache, or on their way to it (cancelled if that fails); how many were read."""

    rows: RowBatch | None = None
    fetched: Future[RowBatch] = field(default_factory=Future)
    num_used: int = 0


class BlockCache:
    """Reads rows by id (`take`: ascending ids), and caches blocks up to `max_bytes`."""

    def __init__(self, take: Take, *, num_rows: int, max_bytes: int) -> None:
        self._take = take
        self._num_rows = num_rows
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: dict[Key, _Block] = {}
        self._num_seen: dict[Key, int] = {}
        self._damaged: set[Key] = set()
        # 0 where rows are too large for blocks.
        self._block_rows: dict[Names, int] = {}
        self.num_bytes = 0
        self._use = 1.0

    def read(self, ids: NDArray[np.int64], names: Names) -> BatchRows:
        """Rows in the order of `ids`, int64 `[rows]`, one or more, repeats allowed."""
        size = self._block_rows.get(names)
        if size:
            return self._read_blocks(ids, names, size)
        ascending, back = np.unique(ids, return_inverse=True)
        batch = self._take(ascending, names)
        if size is None:
            # The first of several threads decides: blocks are cached by their numbers.
            row_bytes = max(1, batch.nbytes // batch.num_rows)
            size = min(_MOST_ROWS, max(_FEWEST_ROWS, _BLOCK_BYTES // row_bytes))
            fits = size * row_bytes * _FEWEST_BLOCKS <= self._max_bytes
            self._block_rows.setdefault(names, size if fits else 0)
        return BatchRows([RowBatch(batch)], np.zeros(len(ids), np.int64), back)

    def _read_blocks(self, ids: NDArray[np.int64], names: Names, size: int) -> BatchRows:
        numbers, inverse, counts = np.unique(ids // size, return_inverse=True, return_counts=True)
        num_rows: dict[int, int] = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        blocks, missing = self._look_up(names, num_rows)
        try:
            self._fetch(names, size, missing)
        except DataError:
            # Maybe of a neighbour that is never read: from now on these rows are read singly.
            with self._lock:
                self._damaged.update((names, number) for number in missing)
        finally:
            # Threads may wait for these. A block that was fetched may have a successor by now.
            for number, block in missing.items():
                with self._lock:
                    if block.fetched.cancel():
                        del self._blocks[names, number]
        try:
            batches = [block.rows or block.fetched.result() for block in blocks.values()]
        except CancelledError:
            return self._read_blocks(ids, names, size)
        batch_of = {number: place for place, number in enumerate(blocks)}
        owners = np.array([batch_of.get(number, len(blocks)) for number in num_rows])[inverse]
        in_batch, alone = ids % size, owners == len(blocks)
        if alone.any():
            singles = np.unique(ids[alone])
            batches.append(RowBatch(self._take(singles, names)))
            in_batch[alone] = np.searchsorted(singles, ids[alone])
        return BatchRows(batches, owners, in_batch)

    def _look_up(
        self, names: Names, num_rows: Mapping[int, int]
    ) -> tuple[dict[int, _Block], dict[int, _Block]]:
        """The blocks to take rows from, and those of them that are to be fetched here."""
        blocks: dict[int, _Block] = {}
        missing: dict[int, _Block] = {}
        with self._lock:
            for number, count in num_rows.items():
                key = names, number
                block = self._blocks.get(key)
                if block is None and self._is_worth_it(key, count):
                    block = missing[number] = self._blocks[key] = _Block()
                if block is not None:
                    blocks[number] = block
                    block.num_used += count
                    self._evict_used(key, block)
        return blocks, missing

    def _fetch(self, names: Names, size: int, missing: Mapping[int, _Block]) -> None:
        numbers = sorted(missing)
        for at in range(0, len(numbers), _BLOCKS_A_READ):
            chunk = numbers[at : at + _BLOCKS_A_READ]
            spans = [
                np.arange(number * size, min((number + 1) * size, self._num_rows), dtype=np.int64)
                for number in chunk
            ]
            batch = self._take(np.concatenate(spans), names)
            start = 0
            for number, span in zip(chunk, spans, strict=True):
                # A copy: a slice would keep the whole batch in memory.
                rows = RowBatch(pa.concat_batches([batch.slice(start, len(span))]))
                self._add((names, number), missing[number], rows)
                start += len(span)

    def _add(self, key: Key, block: _Block, rows: RowBatch) -> None:
        with self._lock:
            block.rows = rows
            block.fetched.set_result(rows)
            self.num_bytes += rows.num_bytes
            self._evict_used(key, block)
            # The oldest go first: they are nearly used up.
            while self.num_bytes > self._max_bytes:
                self._evict(next(k for k, each in self._blocks.items() if each.rows))

    # Called under the lock.

    def _is_worth_it(self, key: Key, count: int) -> bool:
        """Whether to fetch a block when `count` of its rows are read."""
        if key in self._damaged:
            return False
        if self._use >= _LEAST_USE:
            return True
        num_seen = self._num_seen.pop(key, 0) + count
        if num_seen >= _PATIENCE:
            return True
        self._num_seen[key] = num_seen
        # As many as have room: a block that is evicted before its next row is not worth it.
        if len(self._num_seen) > max(_FEWEST_BLOCKS, len(self._blocks)):
            del self._num_seen[next(iter(self._num_seen))]
        return False

    def _evict_used(self, key: Key, block: _Block) -> None:
        if block.rows and block.num_used >= block.rows.num_rows:
            self._evict(key)

    def _evict(self, key: Key) -> None:
        block = self._blocks.pop(key)
        assert block.rows is not None, "a block is evicted after it was fetched"
        self.num_bytes -= block.rows.num_bytes
        share = min(1.0, block.num_used / block.rows.num_rows)
        self._use += (share - self._use) / 64
