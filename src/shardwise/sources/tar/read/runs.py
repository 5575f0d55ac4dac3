"""Samples in storage order: long reads of one local shard, shared by many rows.

A sample of 1 kB costs less than its own read: a piece of some 150 samples is read once, and
their payloads are cut from it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Columns
from shardwise.base.errors import DataError, StorageError
from shardwise.sources.tar.read.reader import Reader
from shardwise.sources.tar.read.shards import GAP_BYTES

# A piece stays in the processor's L2 cache between being read and being cut.
_PIECE_BYTES = 512 << 10
# Rows that are located at a time: 64 KiB of numbers per field.
_MAX_ROWS = 4096
# Payloads that lie apart are held together up to 1,024 rows or 4 MiB.
_APART_ROWS, _APART_BYTES = 1024, 4 << 20


def read_run(reader: Reader, start: int, stop: int, names: tuple[str, ...]) -> Iterator[Columns]:
    """Yield samples `[start, stop)` of local shards without digests, as columns in order."""
    manifest = reader.shards.manifest
    while start < stop:
        shard, row = reader.shards.locate(start)
        end = min(stop, int(manifest.ends[shard]), start + _MAX_ROWS)
        yield from _read_rows(reader, shard, row, np.arange(start, end, dtype=np.int64), names)
        start = end


def _read_rows(
    reader: Reader, shard: int, row: int, ids: NDArray[np.int64], names: tuple[str, ...]
) -> Iterator[Columns]:
    index = reader.shards.index(shard)
    rows = np.arange(row, row + len(ids), dtype=np.int64)
    offsets, sizes = index.locate_all(names, rows)
    stored = sizes > 0
    begins = np.where(stored, offsets, 1 << 62).min(axis=0, initial=1 << 62)
    ends = np.where(stored, offsets + sizes, 0).max(axis=0, initial=0)
    if not _is_dense(begins, ends, sizes):
        yield from _read_apart(reader, ids, sizes, names)
        return
    first = 0
    while first < len(ids):
        begin = int(begins[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _PIECE_BYTES, side="right")))
        try:
            data = reader.file(shard).read(begin, int(ends[last - 1]) - begin)
        except (DataError, StorageError):
            # The reader reads once more, and reports which payload is wrong.
            yield reader.read(ids[first:last], names)
        else:
            buffer = np.frombuffer(data, np.uint8)
            columns = {
                name: BytesColumn(buffer, offsets[i, first:last] - begin, sizes[i, first:last])
                for i, name in enumerate(names)
            }
            keys = index.keys.take(rows[first:last])
            yield Columns(ids[first:last], keys, columns, len(data))
        first = last


def _read_apart(
    reader: Reader, ids: NDArray[np.int64], sizes: NDArray[np.int64], names: tuple[str, ...]
) -> Iterator[Columns]:
    """Yield samples whose payloads lie far apart, or in no order, by a read each."""
    totals = np.cumsum(np.maximum(sizes, 0).sum(axis=0))
    first, done = 0, 0
    while first < len(ids):
        fit = int(np.searchsorted(totals, done + _APART_BYTES, side="right"))
        last = min(max(first + 1, fit), first + _APART_ROWS)
        yield reader.read(ids[first:last], names)
        first, done = last, int(totals[last - 1])


def _is_dense(begins: NDArray[np.int64], ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether payloads ascend, in each row at least one, with short gaps between them."""
    if not ends.all() or (begins[1:] < ends[:-1]).any():
        return False
    num_payloads = int(np.count_nonzero(sizes > 0))
    num_bytes = int(sizes.sum(where=sizes > 0))
    return int(ends[-1] - begins[0]) <= num_bytes + num_payloads * GAP_BYTES
