"""Rows of several held columns as one column: each row is copied once, to its place.

Imports numpy and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column, LazyBytesColumn
from shardwise.sources.tables.arrow.views import Bytes, Held, Numbers

__all__ = ["ScatteredBytes", "take_together"]

Parts = Sequence[tuple[int, NDArray[np.int64]]]

# Rows that are copied to their places at a time: what stays in the processor's cache.
_TOGETHER_BYTES = 64 << 10


def take_together(
    held: Sequence[Held], parts: Sequence[tuple[int, NDArray[np.int64]]], order: NDArray[np.int64]
) -> Column | None:
    """Rows of numbers or bytes from several columns, without a column for each.

    Args:
        held: the columns, one a part.
        parts: for each part: where it begins among all rows, and its rows.
        order: int64 `[rows]`: where each of these rows stands in the result.

    Returns:
        All rows; None for columns of other kinds, with rows missing, or of different forms.
    """
    first = held[0]
    if isinstance(first, Numbers):
        return _numbers_together([one for one in held if isinstance(one, Numbers)], parts, order)
    # Text is bytes too, and has values of its own.
    if type(first) is Bytes:
        return ScatteredBytes([one for one in held if type(one) is Bytes], parts, order)
    return None


def _numbers_together(
    held: Sequence[Numbers],
    parts: Sequence[tuple[int, NDArray[np.int64]]],
    order: NDArray[np.int64],
) -> NDArray[Any] | None:
    first = held[0].values
    form = (first.shape[1:], first.dtype)
    for one in held:
        values = one.values
        if one.valid is not None or one.broken is not None:
            return None
        if (values.shape[1:], values.dtype) != form:
            return None
    if len(held) != len(parts):
        return None
    out = np.empty((len(order), *form[0]), form[1])
    _scatter([one.values for one in held], parts, order, out)
    return out


def _scatter(
    arrays: Sequence[NDArray[Any]], parts: Parts, order: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Copy rows of each array to their places in `out`: those of several small parts at a time."""
    taken: list[NDArray[Any]] = []
    num_bytes = done = 0
    for number, (array, (begin, rows)) in enumerate(zip(arrays, parts, strict=True), 1):
        # Much faster than an index in brackets.
        taken.append(array.take(rows, axis=0))
        num_bytes += taken[-1].nbytes
        if num_bytes >= _TOGETHER_BYTES or number == len(parts):
            end = begin + len(rows)
            out[order[done:end]] = taken[0] if len(taken) == 1 else np.concatenate(taken)
            taken, num_bytes, done = [], 0, end


class ScatteredBytes(LazyBytesColumn):
    """Payloads in the buffers of several columns: packed into one only if somebody looks at it.

    Decoders of raw arrays copy whole columns, straight from where the payloads lie.

    Args:
        held: the columns, one a part.
        parts: for each part: where it begins among all rows, and its rows.
        order: int64 `[rows]`: where each of these rows stands in this column.
    """

    __slots__ = ("_held", "_order", "_parts")

    def __init__(self, held: Sequence[Bytes], parts: Parts, order: NDArray[np.int64]) -> None:
        self._held = held
        self._parts = parts
        self._order = order
        fixed = {None if one.matrix is None else one.matrix.shape[1] for one in held}
        if len(fixed) == 1 and None not in fixed:
            self.lengths = np.full(len(order), fixed.pop(), np.int64)
        else:
            self.lengths = np.empty(len(order), np.int64)
            _scatter([one.column.lengths for one in held], parts, order, self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def copy_rows(self, out: NDArray[np.uint8]) -> bool:
        """Copy all payloads into `out`, uint8 `[rows, length]`; False if one is not that long."""
        matrices = [one.matrix for one in self._held if one.matrix is not None]
        lengths = {matrix.shape[1] for matrix in matrices}
        if len(matrices) < len(self._held) or lengths != {out.shape[1]}:
            return super().copy_rows(out)
        _scatter(matrices, self._parts, self._order, out)
        return True

    def _pack(self) -> None:
        sizes = np.maximum(self.lengths, 0)[self._order]
        views: list[memoryview] = []
        for one, (begin, rows) in zip(self._held, self._parts, strict=True):
            view = one.column.buffer.data
            starts = one.column.starts[rows]
            ends = (starts + sizes[begin : begin + len(rows)]).tolist()
            views += [view[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
        # The payloads lie by part; which is whose is told by the starts.
        starts = np.empty(len(sizes), np.int64)
        starts[self._order] = np.cumsum(sizes) - sizes
        self.starts = starts
        self.buffer = np.frombuffer(b"".join(views), np.uint8)
        self._view = self.buffer.data
