"""Columns that worker processes put into the memory of a batch, though no decoder said they could.

What a transform returns is known when it has returned: if the first batch has arrays of one shape
and dtype, memory for their like is set aside in the batches that follow, and a worker that makes
such rows writes them there. A piece whose rows turn out otherwise travels as a message, as all did
before; the batch is the same (I5). Imports numpy and the engine's pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Layout

__all__ = ["Placed", "learned_layout", "place"]

# Smaller rows are as well off in a message.
_MIN_ROW_BYTES = 256


class Placed(NamedTuple):
    """Stands in a piece for a column whose rows lie in the batch's memory."""

    num_rows: int


def learned_layout(data: Mapping[str, Any], known: Mapping[str, Layout]) -> dict[str, Layout]:
    """Shape and dtype of a row for the columns of a batch that could be written in place.

    Args:
        data: the columns of a batch that has been made.
        known: the fields that are written in place already.
    """
    return {
        name: (column.shape[1:], column.dtype)
        for name, column in data.items()
        if isinstance(column, np.ndarray)
        and name not in known
        and column.nbytes >= _MIN_ROW_BYTES * len(column) > 0
    }


def place(
    columns: Mapping[str, Sequence[Any]], memory: Mapping[str, NDArray[Any]]
) -> dict[str, Sequence[Any]]:
    """Write what fits into the rows of the batch.

    Args:
        columns: what was loaded: a sequence of values a field.
        memory: arrays `[rows, ...]` for some of the fields.

    Returns:
        The same columns in the same order, `Placed` where the rows were written.
    """
    return {
        name: Placed(len(column)) if _is_written(column, memory.get(name)) else column
        for name, column in columns.items()
    }


def _is_written(column: Any, rows: NDArray[Any] | None) -> bool:
    if rows is None or not len(rows):
        return False
    if isinstance(column, np.ndarray):
        if column.shape != rows.shape or column.dtype != rows.dtype:
            return False
        np.copyto(rows, column)
        return True
    for value in column:
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (
            rows.shape[1:],
            rows.dtype,
        ):
            return False
    for row, value in zip(rows, column, strict=True):
        np.copyto(row, value)
    return True
