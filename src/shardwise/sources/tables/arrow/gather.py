"""Rows of several Arrow columns as one column: each row is copied once, to its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column, LazyBytesColumn
from shardwise.sources.tables.arrow.views import ArrowColumn, Bytes, Numbers

__all__ = ["Parts", "ScatteredBytes", "gather_buffers"]

# For each column: where its rows begin among all rows, and the rows to take of it.
Parts = Sequence[tuple[int, NDArray[np.int64]]]

# Bytes that are copied to their places at a time: what stays in the processor's cache.
_CHUNK_BYTES = 64 << 10


def gather_buffers(
    columns: Sequence[ArrowColumn], parts: Parts, order: NDArray[np.int64]
) -> Column | None:
    """Rows of numbers or bytes from several columns, without a column for each.

    Args:
        columns: one a part.
        parts: see `Parts`.
        order: int64 `[rows]`: where each of these rows stands in the result.

    Returns:
        All rows; None for columns of other kinds, with rows missing, or of different forms.
    """
    first = columns[0]
    if isinstance(first, Numbers):
        return _gather_numbers([c for c in columns if isinstance(c, Numbers)], parts, order)
    # Text is bytes too, and has values of its own.
    if type(first) is Bytes:
        return ScatteredBytes([c for c in columns if type(c) is Bytes], parts, order)
    return None


def _gather_numbers(
    columns: Sequence[Numbers], parts: Parts, order: NDArray[np.int64]
) -> NDArray[Any] | None:
    arrays = [c.values for c in columns if c.valid is None and c.broken is None]
    first = columns[0].values
    form = (first.shape[1:], first.dtype)
    if len(arrays) < len(parts) or any((a.shape[1:], a.dtype) != form for a in arrays):
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

    Args:
        columns: one a part.
        parts: see `Parts`.
        order: int64 `[rows]`: where each of these rows stands in this column.
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
