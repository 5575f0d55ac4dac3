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
from concurrent.futures import Future
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Block:
    """Rows in the cache, and how many of them were read from it."""

    rows: RowBatch
    num_used: int = 0


class BlockCache:
    """Reads rows by id (`take`: ascending ids), and caches blocks up to `max_bytes`."""

    def __init__(self, take: Take, *, num_rows: int, max_bytes: int) -> None:
        self._take = take
        self._num_rows = num_rows
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: dict[Key, _Block] = {}
        # Blocks that a thread reads now; None for one that it failed to read.
        self._in_flight: dict[Key, Future[RowBatch | None]] = {}
        self._num_seen: dict[Key, int] = {}
        self._damaged: set[Key] = set()
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
            self._block_rows.setdefault(names, self._size_of_blocks(batch))
        return BatchRows([RowBatch(batch)], np.zeros(len(ids), np.int64), back)

    def _size_of_blocks(self, sample: pa.RecordBatch) -> int:
        """Rows in a block of rows like these; 0 where they are too large for blocks."""
        row_bytes = max(1, int(sample.nbytes) // sample.num_rows)
        size = min(_MOST_ROWS, max(_FEWEST_ROWS, _BLOCK_BYTES // row_bytes))
        return size if size * row_bytes * _FEWEST_BLOCKS <= self._max_bytes else 0

    def _read_blocks(self, ids: NDArray[np.int64], names: Names, size: int) -> BatchRows:
        numbers, inverse, counts = np.unique(ids // size, return_inverse=True, return_counts=True)
        num_rows: dict[int, int] = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        blocks, missing, in_flight = self._look_up(names, num_rows)
        known = {*blocks, *missing, *in_flight}
        is_single = np.array([number not in known for number in num_rows])
        singles = np.unique(ids[is_single[inverse]])
        is_damaged = False
        try:
            self._fetch(names, size, blocks, {number: num_rows[number] for number in missing})
        except DataError:
            # Maybe of a neighbour that is never read: from now on these rows are read singly.
            is_damaged = True
            with self._lock:
                self._damaged.update((names, number) for number in missing)
        finally:
            self._fail(names, missing)
        if is_damaged:
            return self._read_blocks(ids, names, size)
        batches = [RowBatch(self._take(singles, names))] if len(singles) else []
        for number, future in in_flight.items():
            rows = future.result()
            if rows is None:
                # The other thread failed: this one meets the error by itself.
                return self._read_blocks(ids, names, size)
            blocks[number] = rows
            with self._lock:
                block = self._blocks.get((names, number))
                if block is not None:
                    self._count((names, number), block, num_rows[number])
        batch_of = {number: len(batches) + place for place, number in enumerate(blocks)}
        owners = np.array([batch_of.get(number, 0) for number in num_rows], np.int64)[inverse]
        in_batch = ids % size
        if len(singles):
            alone = is_single[inverse]
            in_batch[alone] = np.searchsorted(singles, ids[alone])
        return BatchRows([*batches, *blocks.values()], owners, in_batch)

    def _look_up(
        self, names: Names, num_rows: Mapping[int, int]
    ) -> tuple[
        dict[int, RowBatch],
        dict[int, Future[RowBatch | None]],
        dict[int, Future[RowBatch | None]],
    ]:
        """Blocks in the cache, those to be fetched here, and those that other threads fetch now."""
        blocks: dict[int, RowBatch] = {}
        missing: dict[int, Future[RowBatch | None]] = {}
        in_flight: dict[int, Future[RowBatch | None]] = {}
        with self._lock:
            for number, count in num_rows.items():
                key = names, number
                block = self._blocks.get(key)
                if block is not None:
                    blocks[number] = block.rows
                    self._count(key, block, count)
                elif key in self._in_flight:
                    in_flight[number] = self._in_flight[key]
                elif self._is_worth_it(key, count):
                    missing[number] = self._in_flight[key] = Future()
        return blocks, missing, in_flight

    def _fetch(
        self, names: Names, size: int, blocks: dict[int, RowBatch], num_rows: Mapping[int, int]
    ) -> None:
        numbers = sorted(num_rows)
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
                blocks[number] = rows
                self._add((names, number), rows, num_rows[number])
                start += len(span)

    def _fail(self, names: Names, missing: Mapping[int, Future[RowBatch | None]]) -> None:
        """Release the threads that wait for blocks which were not fetched after all.

        One that was fetched may be used up by now, and in flight for another thread.
        """
        for number, future in missing.items():
            if not future.done():
                with self._lock:
                    del self._in_flight[names, number]
                future.set_result(None)

    def _add(self, key: Key, rows: RowBatch, count: int) -> None:
        with self._lock:
            future = self._in_flight.pop(key)
            block = self._blocks[key] = _Block(rows)
            self.num_bytes += rows.num_bytes
            self._count(key, block, count)
            # The oldest go first: they are nearly used up.
            while self.num_bytes > self._max_bytes:
                self._evict(next(iter(self._blocks)))
        future.set_result(rows)

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

    def _count(self, key: Key, block: _Block, count: int) -> None:
        block.num_used += count
        if block.num_used >= block.rows.num_rows:
            self._evict(key)

    def _evict(self, key: Key) -> None:
        block = self._blocks.pop(key)
        self.num_bytes -= block.rows.num_bytes
        share = min(1.0, block.num_used / block.rows.num_rows)
        self._use += (share - self._use) / 64
