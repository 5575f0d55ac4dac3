"""The replacement of nulls: `fill=` of the tables.

A column of numbers without nulls is an array in every batch; with one it would be a list in the
batch that has it. Keeps: a filled column has one form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardwise.base.columns import BytesColumn, Column
from shardwise.extensions.tables.arrow.types import is_bytes, is_text, layouts, plain_type


def fills_of(fill: Any, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The value that stands for a null, by field: its own, or the one for all of its kind."""
    if fill is None:
        return {}
    if isinstance(fill, Mapping):
        for name in fill:
            if name not in types:
                there = ", ".join(map(repr, types)) or "none"
                raise ValueError(f"fill= names {name!r}: the columns are {there}")
        values = {name: _fitting(value, types[name]) for name, value in fill.items()}
        for name, value in values.items():
            if value is None:
                raise ValueError(
                    f"fill={{{name!r}: {fill[name]!r}}}: the column is {types[name]}; numbers, "
                    "fixed-size lists of them, strings and bytes can be filled, with a value of "
                    "their own type"
                )
        return values
    # Zero is a number, and no point in time.
    values = {
        name: _fitting(fill, kind)
        for name, kind in types.items()
        if not pa.types.is_temporal(plain_type(kind))
    }
    fitting = {name: value for name, value in values.items() if value is not None}
    if not fitting:
        raise ValueError(f"fill={fill!r}: no column is of that kind")
    return fitting


def fill_nulls(column: Column, value: Any) -> Column:
    """The column with a value in place of each None: an array if the value is one."""
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        return column
    if isinstance(column, BytesColumn):
        if int(column.lengths.min(initial=0)) >= 0:
            return column
        return BytesColumn.of([value if each is None else each for each in column.to_list()])
    values = [value if each is None else each for each in column]
    if not isinstance(value, np.ndarray):
        return values
    return np.array(values, value.dtype).reshape(len(values), *value.shape)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """A value as a column of this type has it; None if it does not fit."""
    plain = plain_type(kind)
    if is_text(plain) or is_bytes(plain):
        return value if isinstance(value, str if is_text(plain) else bytes) else None
    layout = layouts(pa.schema([("x", kind)])).get("x")
    number = np.asarray(value)
    if layout is None or number.dtype.kind not in "biuf":
        return None
    shape, dtype = layout
    if (number.dtype.kind == "b") != (dtype.kind == "b") or number.shape not in ((), shape):
        return None
    row = np.broadcast_to(number, shape)
    with np.errstate(invalid="ignore", over="ignore"):
        fitting = row.astype(dtype)
    # 0.5 has no place among whole numbers, nor 300 among uint8.
    return fitting if dtype.kind == "f" or np.array_equal(fitting, row) else None
