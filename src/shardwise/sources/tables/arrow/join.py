"""Rows of several Arrow columns as one column: groups of a table, or chunks of a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column, LazyBytesColumn, merge_columns
from shardwise.sources.tables.arrow.views import ArrowColumn, Bytes, Numbers, RowError, Rows

# For each column: where its rows begin among all rows, and the rows to take of it.
Parts = Sequence[tuple[int, NDArray[np.int64]]]

# Bytes that are copied to their places at a time: what stays in the processor's cache.
_CHUNK_BYTES = 64 << 10


def join_columns(own: Sequence[ArrowColumn], parts: Parts, order: NDArray[np.int64]) -> Column:
    """Rows of several columns; `order` says where each of them stands in the result."""
    # Bytes of some files may lie in dictionaries.
    kinds = set(map(type, own))
    if kinds == {Numbers}:
        array = _join_numbers(cast("Sequence[Numbers]", own), parts, order)
        if array is not None:
            return array
    if kinds == {Bytes}:
        return ScatteredBytes(cast("Sequence[Bytes]", own), parts, order)
    columns = []
    for column, (start, rows) in zip(own, parts, strict=True):
        try:
            columns.append((order[start : start + len(rows)], column.take(rows)))
        except RowError as error:
            raise RowError(start + error.row, str(error)) from None
    return merge_columns(columns, len(order))


def _join_numbers(
    columns: Sequence[Numbers], parts: Parts, order: NDArray[np.int64]
) -> NDArray[Any] | None:
    """One array, without one for each column; None with rows missing, or of different forms."""
    arrays = [c.values for c in columns if c.valid is None and c.broken is None]
    first = columns[0].values
    form = (first.shape[1:], first.dtype)
    if len(arrays) < len(columns) or any((a.shape[1:], a.dtype) != form for a in arrays):
        return None
    out = np.empty((len(order), *form[0]), form[1])
    _scatter(arrays, parts, order, out)
    return out


def _scatter(
    arrays: Sequence[NDArray[Any]], parts: Parts, order: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Copy rows of each array to their places in `out`: those of several small parts at a time."""
    chunk: list[NDArray[Any]] = []
    num_bytes = done = 0
    for number, (array, (start, rows)) in enumerate(zip(arrays, parts, strict=True), 1):
        # Much faster than an index in brackets.
        chunk.append(array.take(rows, axis=0))
        num_bytes += chunk[-1].nbytes
        if num_bytes >= _CHUNK_BYTES or number == len(parts):
            end = start + len(rows)
            out[order[done:end]] = chunk[0] if len(chunk) == 1 else np.concatenate(chunk)
            chunk, num_bytes, done = [], 0, end


class ScatteredBytes(LazyBytesColumn):
    """Payloads in the buffers of several columns, packed into one buffer at the first look.

    Decoders of raw arrays copy whole columns, straight from where the payloads lie.
    """

    __slots__ = ("_columns", "_order", "_parts")

    def __init__(self, columns: Sequence[Bytes], parts: Parts, order: NDArray[np.int64]) -> None:
        self._columns = columns
        self._parts = parts
        self._order = order
        widths = {None if c.matrix is None else c.matrix.shape[1] for c in columns}
        if len(widths) == 1 and None not in widths:
            self.lengths = np.full(len(order), widths.pop(), np.int64)
        else:
            self.lengths = np.empty(len(order), np.int64)
            _scatter([c.column.lengths for c in columns], parts, order, self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def copy_rows(self, out: NDArray[np.uint8]) -> bool:
        """Copy all payloads into `out`, uint8 `[rows, length]`; False if one is not that long."""
        matrices = [c.matrix for c in self._columns if c.matrix is not None]
        widths = {matrix.shape[1] for matrix in matrices}
        if len(matrices) < len(self._columns) or widths != {out.shape[1]}:
            return super().copy_rows(out)
        _scatter(matrices, self._parts, self._order, out)
        return True

    def _pack(self) -> None:
        sizes = np.maximum(self.lengths, 0)[self._order]
        views: list[memoryview] = []
        for each, (start, rows) in zip(self._columns, self._parts, strict=True):
            view = each.column.buffer.data
            starts = each.column.starts[rows]
            ends = (starts + sizes[start : start + len(rows)]).tolist()
            views += [view[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
        # The payloads lie by part; `starts` says whose they are.
        starts = np.empty(len(sizes), np.int64)
        starts[self._order] = np.cumsum(sizes) - sizes
        self.starts = starts
        self.buffer = np.frombuffer(b"".join(views), np.uint8)
        self._view = self.buffer.data


class ChunkedColumn:
    """A column in several chunks, which stay apart: one array may not hold what they hold."""

    def __init__(self, chunks: Sequence[ArrowColumn], counts: Sequence[int]) -> None:
        self._chunks = chunks
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._starts = self._ends - np.array(counts, np.int64)

    def take(self, rows: Rows) -> Column:
        """What each chunk gives of its rows, in their order."""
        if isinstance(rows, slice):
            rows = np.arange(self._ends[-1], dtype=np.int64)[rows]
        if not len(rows):
            return self._chunks[0].take(rows)
        owners = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(owners, kind="stable")
        numbers, starts = np.unique(owners[order], return_index=True)
        in_chunks = (rows - self._starts[owners])[order]
        parts = [
            (int(start), part)
            for start, part in zip(starts, np.split(in_chunks, starts[1:]), strict=True)
        ]
        try:
            return join_columns([self._chunks[i] for i in numbers.tolist()], parts, order)
        except RowError as error:
            raise RowError(int(order[error.row]), str(error)) from None
