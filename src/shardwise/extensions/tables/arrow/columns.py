"""Convert the fields of Arrow tables to the columns that the rest of the library reads.

Numbers of one shape are one numpy array, binary columns are a `BytesColumn` over Arrow's own
buffers, and nothing is copied before rows are taken. A row that Arrow calls null is a field that
the sample lacks: None. No row of a number, a string or binary column goes through `to_pylist`.

| Arrow | value |
|---|---|
| bool, integers, floats | a number; a column of them is an array `[rows]` |
| date, time, timestamp, duration | a whole number, in the column's own unit |
| fixed-size lists and tensors of them | an array; a column of them is an array `[rows, ...]` |
| lists of them | an array; nested ones too where the lengths agree, else a list of arrays |
| binary of every kind | bytes |
| strings of every kind | str |
| lists of strings, of bytes | a list |
| dictionary | the dictionary's values |
| struct | a field for each of its fields: "meta.width" |
| struct of bytes and path | its bytes, under the struct's own name |
| everything else | the Python object that pyarrow makes of it, one by one |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardwise.base.columns import Column, LazyBytesColumn, key_text, merge_columns
from shardwise.base.errors import DataError
from shardwise.extensions.tables.arrow.convert import convert
from shardwise.extensions.tables.arrow.types import KEY, no_values
from shardwise.extensions.tables.arrow.views import ArrowColumn, Bytes, Numbers, RowError


def leaf(table: pa.Table | pa.RecordBatch, name: str) -> Any:
    """The column of a field, inside structs too; None without one, DataError for damaged data."""
    path: list[str] = []
    rest: str | None = name
    fields: Any = table.schema
    # A name may contain dots.
    while rest is not None:
        at = fields.get_field_index(rest)
        starts = (f for f in fields if f"{rest}.".startswith(f"{f.name}."))
        step = fields.field(at) if at >= 0 else next(starts, None)
        if step is None:
            return None
        path.append(step.name)
        rest = None if rest == step.name else rest[len(step.name) + 1 :]
        fields = step.type if pa.types.is_struct(step.type) else pa.struct([])
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
        """The columns of some fields, and maybe others."""
        for name in names:
            if name not in self._columns:
                self._columns[name] = convert(leaf(self._batch, name))
        return self._columns


def empty_columns(types: Mapping[str, pa.DataType], names: Sequence[str]) -> dict[str, Column]:
    """Columns of some fields, without a row."""
    return {name: convert(no_values(types[name])).take(slice(None)) for name in names}


def key_texts(column: Column, url_of: Callable[[int], str]) -> list[str]:
    """The texts of a column of keys; `url_of` gives a row's file, for the error of a bad key."""
    keys: list[str] = []
    try:
        keys.extend(map(key_text, column))
    except ValueError as error:
        raise DataError(str(error), url=url_of(len(keys)), field=KEY) from error
    return keys


def gather(
    names: Sequence[str],
    groups: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns_of: Callable[[int], Mapping[str, ArrowColumn]],
    *,
    ids: NDArray[np.int64],
    locate: Callable[[int], tuple[str, str]],
) -> dict[str, Column]:
    """Take rows out of several groups of Arrow columns, `columns_of` each group's number.

    `groups` and `rows` are int64 `[k]`, k > 0: the group of each row, and its row there. `ids`, and
    `locate`, which gives url and key of row i of the result, are for messages.
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
            columns[name] = _join([group[name] for group in in_groups], parts, order)
        except RowError as error:
            raise data_error(name, int(order[error.row]), error) from None
    return columns


# For each column: where its rows start among all rows, and the rows to take of it.
Parts = Sequence[tuple[int, NDArray[np.int64]]]

# Bytes that are scattered at a time: they stay in the processor's cache.
_CHUNK_BYTES = 64 << 10


def _join(own: Sequence[ArrowColumn], parts: Parts, order: NDArray[np.int64]) -> Column:
    """Rows of several columns; `order` holds the position of each in the result."""
    # Bytes of some files may lie in dictionaries.
    kinds = set(map(type, own))
    if kinds == {Numbers}:
        array = _join_numbers(cast("Sequence[Numbers]", own), parts, order)
        if array is not None:
            return array
    if kinds == {Bytes}:
        return ScatteredBytes(cast("Sequence[Bytes]", own), parts, order)
    columns = []
    for column, (start, rows) in zip(own, parts, strict=True):
        try:
            columns.append((order[start : start + len(rows)], column.take(rows)))
        except RowError as error:
            raise RowError(start + error.row, str(error)) from None
    return merge_columns(columns, len(order))


def _join_numbers(
    columns: Sequence[Numbers], parts: Parts, order: NDArray[np.int64]
) -> NDArray[Any] | None:
    """Join without an array per column; None with rows missing, or of different forms."""
    arrays = [c.values for c in columns if c.valid is None and c.broken is None]
    first = columns[0].values
    form = (first.shape[1:], first.dtype)
    if len(arrays) < len(columns) or any((a.shape[1:], a.dtype) != form for a in arrays):
        return None
    out = np.empty((len(order), *form[0]), form[1])
    _scatter(arrays, parts, order, out)
    return out


def _scatter(
    arrays: Sequence[NDArray[Any]], parts: Parts, order: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Copy rows of each array to their positions in `out`, several small parts at a time."""
    chunk: list[NDArray[Any]] = []
    num_bytes = done = 0
    for number, (array, (start, rows)) in enumerate(zip(arrays, parts, strict=True), 1):
        # Much faster than an index in brackets.
        chunk.append(array.take(rows, axis=0))
        num_bytes += chunk[-1].nbytes
        if num_bytes >= _CHUNK_BYTES or number == len(parts):
            end = start + len(rows)
            out[order[done:end]] = chunk[0] if len(chunk) == 1 else np.concatenate(chunk)
            chunk, num_bytes, done = [], 0, end


class ScatteredBytes(LazyBytesColumn):
    """Payloads of several columns, packed at the first look; raw arrays are copied unpacked."""

    __slots__ = ("_columns", "_order", "_parts")

    def __init__(self, columns: Sequence[Bytes], parts: Parts, order: NDArray[np.int64]) -> None:
        self._columns = columns
        self._parts = parts
        self._order = order
        widths = {None if c.matrix is None else c.matrix.shape[1] for c in columns}
        if len(widths) == 1 and None not in widths:
            self.lengths = np.full(len(order), widths.pop(), np.int64)
        else:
            self.lengths = np.empty(len(order), np.int64)
            _scatter([c.column.lengths for c in columns], parts, order, self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def copy_rows(self, out: NDArray[np.uint8]) -> bool:
        """Copy all payloads into `out`, uint8 `[rows, length]`; False if one is not that long."""
        matrices = [c.matrix for c in self._columns if c.matrix is not None]
        widths = {matrix.shape[1] for matrix in matrices}
        if len(matrices) < len(self._columns) or widths != {out.shape[1]}:
            return super().copy_rows(out)
        _scatter(matrices, self._parts, self._order, out)
        return True

    def _pack(self) -> None:
        sizes = np.maximum(self.lengths, 0)[self._order]
        views: list[memoryview] = []
        for each, (start, rows) in zip(self._columns, self._parts, strict=True):
            view = each.column.buffer.data
            starts = each.column.starts[rows]
            ends = (starts + sizes[start : start + len(rows)]).tolist()
            views += [view[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
        # The payloads lie by part; `starts` has their offsets in the order of rows.
        starts = np.empty(len(sizes), np.int64)
        starts[self._order] = np.cumsum(sizes) - sizes
        self.starts = starts
        self.buffer = np.frombuffer(b"".join(views), np.uint8)
        self._view = self.buffer.data


A = TypeVar("A", bound="pa.Array | pa.ChunkedArray")


def validated(array: A, name: str, *, fully: bool = True) -> A:
    """The array, if pyarrow finds all of it in its buffers; if not `fully`, by their sizes."""
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    kind = _opaque(array.type)
    try:
        for chunk in chunks:
            # The sizes of buffers first: the view takes them for granted.
            chunk.validate()
            if fully:
                (chunk if kind == chunk.type else chunk.view(kind)).validate(full=True)
    except pa.ArrowException as error:
        raise DataError(f"the Arrow data is damaged: {error}", field=name) from error
    return array


def _opaque(kind: pa.DataType) -> pa.DataType:
    """The type with binaries for texts and integers for times: any bytes of them are valid."""
    return next((make(kind) for test, make in _OPAQUE if test(kind)), kind)


def _opaque_item(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(_opaque(kind.value_type))


def _opaque_struct(kind: pa.DataType) -> pa.DataType:
    return pa.struct([field.with_type(_opaque(field.type)) for field in kind])


_OPAQUE: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (pa.types.is_string, lambda _: pa.binary()),
    (pa.types.is_large_string, lambda _: pa.large_binary()),
    (pa.types.is_decimal, lambda kind: pa.binary(kind.byte_width)),
    (pa.types.is_interval, lambda kind: kind),
    (pa.types.is_temporal, lambda kind: pa.int64() if kind.bit_width == 64 else pa.int32()),
    (pa.types.is_dictionary, lambda kind: pa.dictionary(kind.index_type, _opaque(kind.value_type))),
    (pa.types.is_struct, _opaque_struct),
    (pa.types.is_list, lambda kind: pa.list_(_opaque_item(kind))),
    (pa.types.is_large_list, lambda kind: pa.large_list(_opaque_item(kind))),
    (pa.types.is_fixed_size_list, lambda kind: pa.list_(_opaque_item(kind), kind.list_size)),
)
