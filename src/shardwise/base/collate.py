"""Columns of decoded values to a batch: arrays where they can be stacked, lists where they can't.

What a batch looks like depends on its values alone, not on how its samples were cut into pieces
(I5): `collate(join(pieces))` is the same for every cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import no_such_field
from shardwise.base.columns import Column, values_of

_NUMBERS = "biufc"
# Rows of this size are freed as soon as they are copied: two batches of 4K clips are 0.8 GB.
_LARGE_ROW_BYTES = 16 << 20


def collate(columns: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any] | list[Any]]:
    """Make a batch from columns of decoded values.

    Args:
        columns: one sequence per field, one value per sample.

    Returns:
        For every column, in the same order:

        - a numeric array as it is (its rows are stacked already);
        - arrays of one shape and dtype: stacked, `[B, ...]`, in one copy;
        - lists of numbers of one length: an array `[B, length]`;
        - bools: bool `[B]`; ints: int64 `[B]`; floats, or ints and floats: float64 `[B]`;
          numpy scalars of one dtype: that dtype `[B]`;
        - all else a list of the values: str, bytes, None, dicts, tensors, arrays of different
          shapes, mixed types, ints that do not fit into 64 bits. Also columns without a row,
          unless they are arrays.

    Examples:
        >>> collate({"cls": [3, 1], "txt": ["a", "b"]})
        {'cls': array([3, 1]), 'txt': ['a', 'b']}
    """
    return collate_owned(dict(columns))


def collate_owned(columns: dict[str, Sequence[Any]]) -> dict[str, NDArray[Any] | list[Any]]:
    """The same for columns that no one else uses: they are taken out, and large rows freed."""
    return {name: _stack(columns.pop(name)) for name in list(columns)}


def _stack(column: Column) -> NDArray[Any] | list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind in _NUMBERS:
        return column
    values = values_of(column)
    if values and isinstance(values[0], np.ndarray):
        column = values = list(values)  # a copy: its rows may be freed
        return _stack_arrays(values)
    if values and type(values[0]) is list:
        return _stack_lists(values)
    dtype = _dtype_of(values)
    if dtype is None:
        return values
    try:
        return np.array(values, dtype)
    except OverflowError:  # an int beyond 64 bits, or beyond the largest float
        return values


def _dtype_of(values: list[Any]) -> Any:
    """The dtype for an array of the scalars; None where a list is better."""
    kinds = set(map(type, values))
    if kinds == {bool}:
        return np.bool_
    if kinds == {int}:
        return np.int64
    if kinds and kinds <= {int, float}:
        return np.float64
    if len(kinds) == 1 and isinstance(values[0], np.number | np.bool_):
        return values[0].dtype
    return None


def dtype_of_numbers(values: list[Any]) -> Any:
    """The dtype for an array of bools, ints or floats; None if there are other values."""
    kind = type(values[0])
    if issubclass(kind, np.number | np.bool_):
        return values[0].dtype if all(type(value) is kind for value in values) else None
    return _dtype_of(values) if type(values[0]) in (bool, int, float) else None


def _stack_lists(values: list[Any]) -> NDArray[Any] | list[Any]:
    if not values[0] or not all(type(v) is list and len(v) == len(values[0]) for v in values):
        return values
    dtype = dtype_of_numbers([number for value in values for number in value])
    try:
        return values if dtype is None else np.array(values, dtype)
    except OverflowError:
        return values


def _stack_arrays(values: list[Any]) -> NDArray[Any] | list[Any]:
    first = values[0]
    if first.dtype.kind not in _NUMBERS or not all(
        isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    ):
        return values
    if first.nbytes < _LARGE_ROW_BYTES or not all(value.flags.c_contiguous for value in values):
        return np.stack(values)
    stacked = np.empty((len(values), *first.shape), first.dtype)
    del first
    for row in range(len(values)):
        stacked[row] = values[row]
        values[row] = None
    return stacked


def named(columns: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """The names, if there are such columns."""
    for name in names:
        if name not in columns:
            absent = no_such_field(name, tuple(columns), kind="entries of a batch")
            raise ValueError(f"as_tuple names {name!r}: {absent}")
    return names


def join(pieces: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, Sequence[Any]]:
    """Join the columns of the row chunks of a batch, in order.

    Args:
        pieces: one or more, all with the same columns.

    Returns:
        For every column of the first piece: arrays of one dtype and trailing shape concatenated,
        else a list of the values. A column of one piece stays as it is. Pieces without a row do
        not count, unless all are.

    Examples:
        >>> join([{"txt": ["a"]}, {"txt": ["b", "c"]}])
        {'txt': ['a', 'b', 'c']}
    """
    if not pieces:
        raise ValueError("join needs one piece or more, to know the columns")
    names = pieces[0].keys()
    for number, piece in enumerate(pieces):
        if piece.keys() != names:
            raise ValueError(
                f"piece {number} has the columns {sorted(piece)}, piece 0 has {sorted(names)}"
            )
    return {name: _concatenate([piece[name] for piece in pieces]) for name in names}


def _concatenate(columns: list[Sequence[Any]]) -> Any:
    filled: list[Column] = [column for column in columns if len(column)]
    first: Column = (filled or columns)[0]
    if len(filled) <= 1:
        return first
    if isinstance(first, np.ndarray) and all(
        isinstance(column, np.ndarray)
        and column.shape[1:] == first.shape[1:]
        and column.dtype == first.dtype
        for column in filled
    ):
        return np.concatenate(filled)
    return [value for column in filled for value in values_of(column)]
