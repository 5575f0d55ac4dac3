"""Columns of decoded values to a batch: arrays where they can be stacked, lists where they can't.

What a batch looks like depends on its values alone, not on how its samples were cut into pieces
(I5): `collate(join(pieces))` is the same for every cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn

__all__ = ["collate", "join", "named"]

_NUMBERS = "biufc"
_PYTHON_TYPES = (np.int64, np.float64, np.bool_)

Column = Sequence[Any] | NDArray[Any]


def collate(columns: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any] | list[Any]]:
    """Make a batch from columns of decoded values.

    Args:
        columns: one sequence a field, one value a sample.

    Returns:
        For every column, in the same order:

        - a numeric array as it is (its rows are stacked already);
        - arrays of one shape and dtype: stacked, `[B, ...]`, in one copy;
        - bools: bool `[B]`; ints: int64 `[B]`; floats, or ints and floats: float64 `[B]`;
          numpy scalars of one dtype: that dtype `[B]`;
        - all else a list of the values: str, bytes, None, dicts, tensors, arrays of different
          shapes, mixed types, ints that do not fit into 64 bits. Also columns without a row,
          unless they are arrays.

    Example:
        >>> collate({"cls": [3, 1], "txt": ["a", "b"]})
        {'cls': array([3, 1]), 'txt': ['a', 'b']}
    """
    return {name: _stack(column) for name, column in columns.items()}


def _stack(column: Column) -> NDArray[Any] | list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind in _NUMBERS:
        return column
    values = _as_list(column)
    if values and isinstance(values[0], np.ndarray):
        return _stack_arrays(values)
    dtype = _dtype_of(values)
    if dtype is None:
        return values
    try:
        return np.array(values, dtype)
    except OverflowError:  # an int beyond 64 bits, or beyond the largest float
        return values


def _dtype_of(values: list[Any]) -> Any:
    """The dtype of an array of these scalars; None where a list is better."""
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


def _stack_arrays(values: list[Any]) -> NDArray[Any] | list[Any]:
    first = values[0]
    if first.dtype.kind not in _NUMBERS or not all(
        isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    ):
        return values
    return np.stack(values)


def _as_list(column: Column) -> list[Any]:
    """Values of a column, one a sample; bytes are copied out of a shared buffer."""
    if isinstance(column, BytesColumn):
        return [None if value is None else bytes(value) for value in column]
    if (
        isinstance(column, np.ndarray)
        and column.ndim == 1
        and (column.dtype in _PYTHON_TYPES or column.dtype.kind in "US")
    ):
        # Python's own types: decoding sample by sample would have given them too.
        values: list[Any] = column.tolist()
        return values
    return list(column)


def named(columns: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """The names, if there are such columns.

    Raises:
        ValueError: one is not there.
    """
    for name in names:
        if name not in columns:
            raise ValueError(
                f"as_tuple names {name!r}, and a batch has {', '.join(map(repr, columns))}"
            )
    return names


def join(pieces: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, Sequence[Any]]:
    """Join the columns of the pieces of a batch, in order.

    Args:
        pieces: one or more, all with the same columns.

    Returns:
        For every column of the first piece: arrays of one dtype and trailing shape concatenated,
        else a list of the values. A column of one piece stays as it is. Pieces without a row do
        not count, unless all are.

    Raises:
        ValueError: the pieces have different columns.

    Example:
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
    return [value for column in filled for value in _as_list(column)]
