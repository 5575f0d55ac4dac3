"""Ragged columns as torch's nested tensors, of the jagged layout.

A column travels as two plain tensors, the concatenated values and the offsets of samples,
so that it is copied to a device like any other; the nested tensor is made of them at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch

from shardwise.base.errors import DataError
from shardwise.engine.batch.padding import description_of, form_of, holds_lists
from shardwise.engine.batch.ragged import remedy_for
from shardwise.tensors.convert import to_tensors


class Jagged(NamedTuple):
    """A ragged column of B samples.

    Attributes:
        values: `[sum of lengths, ...]`.
        offsets: int64 `[B + 1]`, where each sample's values start and end.
    """

    values: torch.Tensor
    offsets: torch.Tensor


def to_jagged(batch: dict[str, Any], *, fixed: Collection[str]) -> dict[str, Any]:
    """A batch of arrays with its columns of arrays as `Jagged`, but those of a fixed shape.

    Raises:
        DataError: the values of a column differ in more than their first dimension, or in dtype.
    """
    changed = dict(batch)
    for name, column in batch.items():
        if name not in fixed and _is_ragged(column):
            values, offsets = _join_rows(name, column)
            tensors = to_tensors({"values": values, "offsets": offsets})
            if not isinstance(tensors["values"], torch.Tensor):
                raise DataError(f"torch has no dtype for {values.dtype}", field=name)
            changed[name] = Jagged(**tensors)
    return changed


def to_nested(batch: Any) -> Any:
    """A batch with its `Jagged` columns as nested tensors `[B, j, ...]`, without a copy."""
    if not isinstance(batch, dict):
        return batch
    return {
        name: torch.nested.nested_tensor_from_jagged(column.values, offsets=column.offsets)
        if isinstance(column, Jagged)
        else column
        for name, column in batch.items()
    }


def _is_ragged(column: Any) -> bool:
    """Whether the values are arrays of one dimension or more."""
    if isinstance(column, np.ndarray):
        return column.ndim > 1 and form_of(column) is not None
    forms = map(form_of, column) if isinstance(column, list) and not holds_lists(column) else ()
    return any(isinstance(form, tuple) and form[0] for form in forms)


def _join_rows(name: str, column: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if isinstance(column, np.ndarray) and not len(column):
        return column.reshape(0, *column.shape[2:]), np.zeros(1, dtype=np.int64)
    first = form_of(column[0])
    for row, value in enumerate(column):
        form = form_of(value)
        if not isinstance(form, tuple) or (form[0][1:], form[1]) != (first[0][1:], first[1]):
            raise DataError(
                f"row {row} of the batch is {description_of(value)} beside "
                f"{description_of(column[0])}: ragged='nested' needs arrays of one dtype that "
                f"differ in their first dimension alone; {remedy_for(column)}",
                field=name,
            )
    lengths = [len(value) for value in column]
    values = np.concatenate([np.asarray(value) for value in column])
    return values, np.cumsum([0, *lengths], dtype=np.int64)
