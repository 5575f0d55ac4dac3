"""Arrow to columns: from a table's fields to what the rest of the library reads.

Numbers of one shape are one numpy array, binary columns are a `BytesColumn` over Arrow's own
buffers, and nothing is copied before rows are taken. A row that Arrow calls null is a field that
the sample lacks: None. No row of a number, a string or binary column goes through `to_pylist`.

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
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.errors import DataError
from shardwise.sources.tables.arrow.convert import convert
from shardwise.sources.tables.arrow.join import join_columns
from shardwise.sources.tables.arrow.types import no_values
from shardwise.sources.tables.arrow.validate import validated
from shardwise.sources.tables.arrow.views import ArrowColumn, RowError


def leaf(table: pa.Table | pa.RecordBatch, name: str) -> Any:
    """The column of a field, inside of structs too: null where any struct around it is.

    None if there is no such field.

    Raises:
        DataError: its data are damaged.
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
    if path[1:]:
        column = pc.struct_field(validated(column, name, fully=False), path[1:])
    return validated(column, name)


class BatchColumns:
    """The fields of a batch, each converted at its first use; two threads may both do it."""

    __slots__ = ("_batch", "_columns")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[str, ArrowColumn] = {}

    def columns(self, names: Sequence[str]) -> Mapping[str, ArrowColumn]:
        """These fields, and maybe others."""
        for name in names:
            if name not in self._columns:
                self._columns[name] = convert(leaf(self._batch, name))
        return self._columns


def empty_columns(types: Mapping[str, pa.DataType], names: Sequence[str]) -> dict[str, Column]:
    """Columns of these fields without a row."""
    return {name: convert(no_values(types[name])).take(slice(None)) for name in names}


def gather(
    names: Sequence[str],
    groups: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns_of: Callable[[int], Mapping[str, ArrowColumn]],
    *,
    ids: NDArray[np.int64],
    locate: Callable[[int], tuple[str, str]],
) -> dict[str, Column]:
    """Take rows out of several groups of Arrow columns, all rows of a group together.

    Args:
        names: the fields.
        groups: int64 `[k]`, k > 0: the group of each row.
        rows: int64 `[k]`, its row in that group.
        columns_of: gives a group's columns by its number; called once for each group.
        ids: int64 `[k]`, the sample ids, for messages.
        locate: gives url and key of row i of the result, for messages.
    """

    def data_error(name: str, row: int, error: RowError) -> DataError:
        url, key = locate(row)
        return DataError(str(error), url=url, key=key, field=name, index=int(ids[row]))

    def open_group(number: int, row: int) -> Mapping[str, ArrowColumn]:
        try:
            return columns_of(number)
        except DataError as error:
            error.url = error.url or locate(row)[0]
            raise

    columns: dict[str, Column] = {}
    if (groups == groups[0]).all():
        group = open_group(int(groups[0]), 0)
        for name in names:
            try:
                columns[name] = group[name].take(rows)
            except RowError as error:
                raise data_error(name, error.row, error) from None
        return columns
    order = np.argsort(groups, kind="stable")
    ascending = groups[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1)).tolist()
    in_groups = [open_group(int(ascending[start]), int(order[start])) for start in starts]
    sorted_rows = rows[order]
    ends = [*starts[1:], len(rows)]
    parts = [(start, sorted_rows[start:end]) for start, end in zip(starts, ends, strict=True)]
    for name in names:
        try:
            columns[name] = join_columns([group[name] for group in in_groups], parts, order)
        except RowError as error:
            raise data_error(name, int(order[error.row]), error) from None
    return columns
