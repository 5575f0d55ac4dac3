"""Columns in Arrow's form, to take rows from: the numpy side.

An `ArrowColumn` is a view of Arrow's buffers and keeps them alive. Only what has no form in numpy
goes through pyarrow's Python objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, merge_columns, values_of

Rows = NDArray[np.int64] | slice


class ArrowColumn(Protocol):
    """A column in Arrow's form, to take rows from."""

    def take(self, rows: Rows) -> Column:
        """These rows, with None where one is missing: an array, a `BytesColumn` or a list."""
        ...


class RowError(Exception):
    """A row that has no value; `gather` names its sample."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of one shape: `values` `[rows, ...]`; `valid` and `broken` bool `[rows]` or None."""

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    broken: NDArray[np.bool_] | None = None

    @property
    def holes(self) -> NDArray[np.bool_] | None:
        """The rows without a number, bool `[rows]`; None if all have one."""
        if self.valid is None:
            return self.broken
        return ~self.valid if self.broken is None else self.broken | ~self.valid

    def take(self, rows: Rows) -> Column:
        """An array, or a list where a row is missing."""
        _refuse_broken(self.broken, rows)
        values = self.values[rows]
        if self.valid is None:
            return values
        valid = self.valid[rows]
        if valid.all():
            return values
        pairs = zip(values_of(values), valid.tolist(), strict=True)
        return [value if there else None for value, there in pairs]


class Bytes:
    """Byte strings in Arrow's buffer; `matrix`, uint8 `[rows, length]`, if all are alike."""

    def __init__(self, column: BytesColumn) -> None:
        self.column = column
        self.matrix = _matrix(column)

    def take(self, rows: Rows) -> Column:
        """A `BytesColumn` of the same buffer."""
        column = self.column
        return BytesColumn(column.buffer, column.starts[rows], column.lengths[rows])


def _matrix(column: BytesColumn) -> NDArray[np.uint8] | None:
    if not len(column):
        return None
    start, length = int(column.starts[0]), int(column.lengths[0])
    if length <= 0 or (column.lengths != length).any() or (np.diff(column.starts) != length).any():
        return None
    return column.buffer[start : start + len(column) * length].reshape(-1, length)


class Text(Bytes):
    """UTF-8 in Arrow's own buffer, not yet checked."""

    def take(self, rows: Rows) -> Column:
        """A list of str."""
        views = super().take(rows)
        try:
            return [None if view is None else str(view, "utf-8") for view in views]
        except UnicodeDecodeError as error:
            # The first row with these bytes.
            row = next(row for row, view in enumerate(views) if view == error.object)
            raise RowError(row, f"a text is no UTF-8, so the column is damaged: {error}") from error


@dataclass(frozen=True, eq=False)
class DictionaryColumn:
    """A dictionary column: the codes, -1 where a row is missing, and what they stand for."""

    codes: NDArray[np.int64]
    words: ArrowColumn

    def take(self, rows: Rows) -> Column:
        """The values of the codes in the dictionary's own column."""
        codes = self.codes[rows]
        there = codes >= 0
        if there.all():
            return self.words.take(codes)
        try:
            words = self.words.take(codes[there])
        except RowError as error:
            raise RowError(int(np.flatnonzero(there)[error.row]), str(error)) from None
        if isinstance(words, BytesColumn):
            starts, lengths = np.zeros(len(codes), np.int64), np.full(len(codes), -1, np.int64)
            starts[there], lengths[there] = words.starts, words.lengths
            return BytesColumn(words.buffer, starts, lengths)
        values = iter(values_of(words))
        return [next(values) if known else None for known in there.tolist()]


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of any length: where they start in `items`, and their lengths, -1 for missing."""

    items: ArrowColumn
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    broken: NDArray[np.bool_] | None

    def take(self, rows: Rows) -> Column:
        """A list of arrays or lists; of numbers in equal counts an array `[rows, count]`."""
        _refuse_broken(self.broken, rows)
        starts, lengths = self.starts[rows], self.lengths[rows]
        items = self.items
        length = int(lengths[0]) if len(lengths) else -1
        if length > 0 and isinstance(items, Numbers) and bool((lengths == length).all()):
            windows = np.lib.stride_tricks.sliding_window_view(items.values, length, axis=0)
            # The window's axis comes last: it belongs after the rows.
            return np.ascontiguousarray(np.moveaxis(windows[starts], -1, 1))
        sizes = np.maximum(lengths, 0)
        ends = np.cumsum(sizes)
        places = np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
        try:
            values = items.take(places)
        except RowError as error:
            row = int(np.searchsorted(ends, error.row, side="right"))
            raise RowError(row, str(error)) from None
        if isinstance(values, BytesColumn):
            values = values.to_list()
        spans = zip((ends - sizes).tolist(), ends.tolist(), lengths.tolist(), strict=True)
        nested = isinstance(items, Lists)
        return [
            None if size < 0 else _stack_arrays(values[begin:end]) if nested else values[begin:end]
            for begin, end, size in spans
        ]


@dataclass(frozen=True, eq=False)
class Objects:
    """Whatever has no form in numpy: pyarrow makes a Python object of each."""

    array: pa.Array

    def take(self, rows: Rows) -> Column:
        """A list of Python objects."""
        places = range(len(self.array))[rows] if isinstance(rows, slice) else rows.tolist()
        values: list[Any] = []
        try:
            values.extend(self.array[place].as_py() for place in places)
        except Exception as error:
            is_text = isinstance(error, UnicodeDecodeError)
            what = "a text is no UTF-8" if is_text else "it is no value of Python's"
            raise RowError(len(values), f"{what}, so the column is damaged: {error}") from error
        return values


class Chunks:
    """A column in several arrays, which stay apart: one array may not hold what they hold."""

    def __init__(self, chunks: Sequence[ArrowColumn], counts: Sequence[int]) -> None:
        self._chunks = chunks
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._starts = self._ends - np.array(counts, np.int64)

    def take(self, rows: Rows) -> Column:
        """The rows of each chunk, merged."""
        rows = np.arange(self._ends[-1], dtype=np.int64)[rows] if isinstance(rows, slice) else rows
        owners = np.searchsorted(self._ends, rows, side="right")
        parts = []
        for number in np.unique(owners).tolist() or [0]:
            places = np.flatnonzero(owners == number)
            try:
                part = self._chunks[number].take(rows[places] - self._starts[number])
            except RowError as error:
                raise RowError(int(places[error.row]), str(error)) from None
            parts.append((places, part))
        return merge_columns(parts, len(rows))


def _refuse_broken(broken: NDArray[np.bool_] | None, rows: Rows) -> None:
    if broken is not None and (bad := np.flatnonzero(broken[rows])).size:
        raise RowError(
            int(bad[0]),
            "a list of numbers has a null among them, which no array can hold: fill it, or leave "
            "the row out, when the table is written",
        )


def _stack_arrays(values: Any) -> Any:
    """Arrays of one form as one array, whatever lists lie beside theirs."""
    if isinstance(values, np.ndarray) or not values or not isinstance(values[0], np.ndarray):
        return values
    first = values[0]
    same = all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values)
    return np.stack(values) if same else values
