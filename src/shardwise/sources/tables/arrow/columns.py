"""Arrow to columns: what the sources of tables share.

A table's columns become what the rest of the library reads: numbers of one shape are one numpy
array, binary columns are a `BytesColumn` over Arrow's own buffers, and nothing is copied before
rows are taken. A row that Arrow calls null is a field that the sample lacks: None. No row of a
number, a string or binary column goes through `to_pylist`; only what has no form in numpy does.
Imports pyarrow, numpy, columns and errors.

| Arrow | value |
|---|---|
| bool, integers, floats | a number; a column of them is an array `[rows]` |
| date, time, timestamp, duration | a whole number, in the column's own unit |
| fixed-size lists and tensors of these | an array; a column of them is an array `[rows, ...]` |
| lists of these | an array; nested ones too where the lengths agree, else a list of arrays |
| binary of every kind | bytes |
| strings of every kind | str |
| lists of strings, of bytes | a list |
| dictionary | what the dictionary says |
| struct | a field for each of its fields: "meta.width" |
| struct of bytes and path | its bytes, under the struct's own name |
| everything else | the Python object that pyarrow makes of it, one by one |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn, Column, values_of
from shardwise.errors import DataError
from shardwise.sources.tables.arrow.types import (
    check_names,
    expand_names,
    field_types,
    layouts,
    no_rows,
    no_values,
    number_dtype,
    plain_type,
    value_fields,
)

# The types come first: they say which extra is missing.
import pyarrow as pa  # isort: skip
import pyarrow.compute as pc  # isort: skip
from shardwise.sources.tables.arrow.convert import convert  # isort: skip
from shardwise.sources.tables.arrow.fill import filled, fills_of  # isort: skip
from shardwise.sources.tables.arrow.views import Held, RowError, Rows  # isort: skip
from shardwise.sources.tables.arrow.gather import take_together  # isort: skip

__all__ = [
    "Held",
    "RowError",
    "check_names",
    "convert",
    "expand_names",
    "field_types",
    "filled",
    "fills_of",
    "gather",
    "joined",
    "layouts",
    "leaf",
    "no_rows",
    "no_values",
    "number_dtype",
    "plain_type",
    "taken",
    "to_columns",
    "value_fields",
]

_ALL = slice(None)


def leaf(table: pa.Table | pa.RecordBatch, name: str) -> Any:
    """The column of a field, inside of structs too: null where any struct around it is.

    None if there is no such field.
    """
    path: list[str] = []
    rest: str | None = name
    fields: Any = table.schema
    # A name may have dots of its own.
    while rest is not None:
        whole = [field for field in fields if field.name == rest]
        step = next((f for f in [*whole, *fields] if f"{rest}.".startswith(f"{f.name}.")), None)
        if step is None:
            return None
        path.append(step.name)
        rest = None if rest == step.name else rest[len(step.name) + 1 :]
        fields = list(step.type) if pa.types.is_struct(step.type) else []
    if "bytes" in {field.name for field in fields}:  # of an image, or of audio
        path.append("bytes")
    column = table.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def to_columns(
    ids: NDArray[np.int64],
    table: pa.Table | pa.RecordBatch,
    names: Sequence[str],
    *,
    url: str | None = None,
) -> dict[str, Column]:
    """Turn a table into columns, one row for each of `ids`.

    Args:
        ids: int64 `[rows]`, the sample ids of the rows, for messages.
        table: has the fields in `names`, and one row for each id.
        names: fields, as `field_types` has them.
        url: where the table lies, for messages.

    Returns:
        A column a field: an array `[rows, ...]`, a `BytesColumn`, or a list with None for nulls.

    Raises:
        DataError: a row has no value, such as a list of numbers with a null in it.
    """
    return {name: taken(convert(leaf(table, name)), _ALL, ids, name, url=url) for name in names}


def taken(
    held: Held, rows: Rows, ids: NDArray[np.int64], name: str, *, url: str | None = None
) -> Column:
    """Take rows of a held column; an error names the sample.

    Args:
        held: the column.
        rows: int64 `[k]`, or a slice.
        ids: int64 `[k]`, the sample ids of these rows.
        name: the field.
        url: where it lies.

    Raises:
        DataError: a row has no value.
    """
    try:
        return held.take(rows)
    except RowError as error:
        index = int(ids[error.row])
        raise DataError(str(error), url=url, key=str(index), field=name, index=index) from None


def gather(
    names: Sequence[str],
    groups: NDArray[np.int64],
    rows: NDArray[np.int64],
    held: Callable[[int], Mapping[str, Held]],
    *,
    error: Callable[[int, str, str], DataError],
) -> dict[str, Column]:
    """Take rows out of several groups of held columns, in one go a group.

    Args:
        names: the fields.
        groups: int64 `[k]`, k > 0: which group each row lies in.
        rows: int64 `[k]`, its row in there.
        held: gives a group's columns by its number; called once for each group.
        error: makes the error for (place in `rows`, field, message) where a row has no value.

    Returns:
        A column a field, `k` rows each.
    """
    if (groups == groups[0]).all():
        group = held(int(groups[0]))
        found: dict[str, Column] = {}
        for name in names:
            try:
                found[name] = group[name].take(rows)
            except RowError as broken:
                raise error(broken.row, name, str(broken)) from None
        return found
    order = np.argsort(groups, kind="stable")
    ascending = groups[order]
    borders = (np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist()
    spans = list(zip([0, *borders], [*borders, len(rows)], strict=True))
    columns = [held(number) for number in ascending[[begin for begin, _ in spans]].tolist()]
    rows = rows[order]
    parts = [(begin, rows[begin:end]) for begin, end in spans]
    found = {}
    for name in names:
        own = [column[name] for column in columns]
        try:
            whole = take_together(own, parts, order)
            found[name] = _joined(own, parts, order) if whole is None else whole
        except RowError as broken:
            raise error(int(order[broken.row]), name, str(broken)) from None
    return found


def _joined(
    held: Sequence[Held], parts: Sequence[tuple[int, NDArray[np.int64]]], order: NDArray[np.int64]
) -> Column:
    """Any columns, part by part."""
    taken = []
    for one, (begin, rows) in zip(held, parts, strict=True):
        try:
            taken.append((order[begin : begin + len(rows)], one.take(rows)))
        except RowError as broken:
            raise RowError(begin + broken.row, str(broken)) from None
    return joined(taken, len(order))


def joined(parts: Sequence[tuple[NDArray[np.int64], Column]], num_rows: int) -> Column:
    """Put columns of several tables together.

    Args:
        parts: the places of a part's rows in the whole, int64, and its column.
        num_rows: rows of the whole, each in one part.
    """
    columns = [column for _, column in parts]
    first = columns[0]
    if isinstance(first, np.ndarray) and all(
        isinstance(c, np.ndarray) and (c.shape[1:], c.dtype) == (first.shape[1:], first.dtype)
        for c in columns
    ):
        out = np.empty((num_rows, *first.shape[1:]), first.dtype)
        for places, column in parts:
            out[places] = column
        return out
    whole: list[Any] = [None] * num_rows
    for places, column in parts:
        values = column if isinstance(column, BytesColumn) else values_of(column)
        for place, value in zip(places.tolist(), values, strict=True):
            whole[place] = value
    if isinstance(first, BytesColumn):
        return BytesColumn.of(whole)
    return whole
