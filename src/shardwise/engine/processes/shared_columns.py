"""Columns in shared memory whose shape no decoder fixes: learned from the first batch.

The shape of what a transform returns is known from a sample only. If a column of the first batch is
an array, memory for such columns is set aside in the next batches, and workers write their rows
there. A chunk whose rows have another shape travels as a message, as all of the first batch do; the
batch is the same (I5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Layout

# Smaller rows are as fast in a message.
_MIN_ROW_BYTES = 256


class InSharedMemory(NamedTuple):
    """Stands in a chunk for a column whose rows lie in the batch's memory."""

    num_rows: int


def learned_layout(data: Mapping[str, Any], known: Mapping[str, Layout]) -> dict[str, Layout]:
    """Shape and dtype of a row for the columns of a batch that could be written in place.

    Those `known` are written in place anyway.
    """
    return {
        name: (column.shape[1:], column.dtype)
        for name, column in data.items()
        if isinstance(column, np.ndarray)
        and name not in known
        and column.nbytes >= _MIN_ROW_BYTES * len(column) > 0
    }


def write_in_place(
    columns: Mapping[str, Sequence[Any]], memory: Mapping[str, NDArray[Any]]
) -> dict[str, Sequence[Any]]:
    """Write the columns that fit into the rows of the batch.

    Args:
        columns: a sequence of values a field.
        memory: arrays `[rows, ...]` for some of the fields.

    Returns:
        The same columns in the same order, `InSharedMemory` where the rows were written.
    """
    return {
        name: InSharedMemory(len(column)) if _is_written(column, memory.get(name)) else column
        for name, column in columns.items()
    }


def _is_written(column: Any, rows: NDArray[Any] | None) -> bool:
    # A chunk without its bad samples has fewer rows than the memory: their positions are unknown.
    if rows is None or not len(column) == len(rows) > 0:
        return False
    if isinstance(column, np.ndarray):
        if (column.shape, column.dtype) != (rows.shape, rows.dtype):
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
