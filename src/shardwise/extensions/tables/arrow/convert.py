"""Convert Arrow's arrays to `ArrowColumn`s: buffers are shared, not copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn
from shardwise.extensions.tables.arrow.types import is_bytes, is_text, no_values, number_dtype
from shardwise.extensions.tables.arrow.views import (
    ArrowColumn,
    Bytes,
    Chunks,
    DictionaryColumn,
    Lists,
    Numbers,
    Objects,
    Text,
)


def convert(array: pa.Array | pa.ChunkedArray) -> ArrowColumn:
    """Make a column over the buffers of a `validated` Arrow array, without a copy."""
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            return convert(array.chunk(0))
        if array.num_chunks:
            return Chunks([*map(convert, array.chunks)], [*map(len, array.chunks)])
        array = no_values(array.type)
    kind = array.type
    dtype = number_dtype(kind)
    if dtype is not None:
        return _numbers(array, dtype)
    make = next((make for test, make in _CONVERTERS if test(kind)), Objects)
    return make(array)


def _valid(array: pa.Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(array: pa.Array, dtype: np.dtype[Any]) -> Numbers:
    valid = _valid(array)
    if dtype == np.bool_:  # eight to a byte
        whole = array.fill_null(False) if valid is not None else array
        return Numbers(whole.to_numpy(zero_copy_only=False), valid)
    return Numbers(_buffer(array.buffers()[1], dtype, array.offset, len(array)), valid)


def _buffer(buffer: Any, dtype: Any, offset: int, count: int) -> NDArray[Any]:
    dtype = np.dtype(dtype)
    if buffer is None or not count:
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def _fixed_lists(array: pa.Array) -> ArrowColumn:
    size = array.type.list_size
    items = convert(array.values.slice(array.offset * size, len(array) * size))
    valid = _valid(array)
    if not isinstance(items, Numbers) or not size:
        starts = np.arange(len(array), dtype=np.int64) * size
        lengths = np.full(len(array), size, np.int64)
        if valid is not None:
            lengths[~valid] = -1
        return Lists(items, starts, lengths, None)
    values = items.values.reshape(len(array), size, *items.values.shape[1:])
    holes = items.holes
    broken: NDArray[np.bool_] | None = None
    if holes is not None:
        broken = np.logical_or.reduce(holes.reshape(len(array), size), axis=1)
        if valid is not None:
            broken = broken & valid  # what lies under a null list means nothing
    return Numbers(values, valid, broken)


def _tensors(array: pa.Array) -> ArrowColumn:
    kind = array.type
    flat = _fixed_lists(array.storage)
    assert isinstance(flat, Numbers), f"tensors of {kind.value_type}"
    values = flat.values.reshape(len(array), *kind.shape)
    if kind.permutation is not None:
        values = values.transpose(0, *(axis + 1 for axis in kind.permutation))
    return Numbers(values, flat.valid, flat.broken)


def _lists(array: pa.Array) -> ArrowColumn:
    offsets = _offsets(array)
    starts, lengths = offsets[:-1], np.diff(offsets)
    valid = _valid(array)
    if valid is not None:
        lengths[~valid] = -1
    items = convert(array.values)
    holes = items.holes if isinstance(items, Numbers) else None
    broken = None
    if holes is not None:
        counts = np.concatenate([[0], np.cumsum(holes)])
        broken = (counts[offsets[1:]] > counts[starts]) & (lengths >= 0)
    return Lists(items, starts, lengths, broken)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """The starts of the rows of a list, string or binary array, and the end of the last."""
    large = (pa.types.is_large_list, pa.types.is_large_string, pa.types.is_large_binary)
    dtype = np.int64 if any(test(array.type) for test in large) else np.int32
    offsets = _buffer(array.buffers()[1], dtype, array.offset, len(array) + 1)
    return offsets.astype(np.int64)


def _bytes_column(array: pa.Array) -> BytesColumn:
    offsets = _offsets(array)
    data = array.buffers()[2]
    size = 0 if data is None else data.size
    return _with_missing(array, _buffer(data, np.uint8, 0, size), offsets[:-1], np.diff(offsets))


def _fixed_bytes(array: pa.Array) -> ArrowColumn:
    width = array.type.byte_width
    data = array.buffers()[1]
    buffer = _buffer(data, np.uint8, 0, 0 if data is None else data.size)
    starts = (np.arange(len(array), dtype=np.int64) + array.offset) * width
    return Bytes(_with_missing(array, buffer, starts, np.full(len(array), width, np.int64)))


def _with_missing(
    array: pa.Array,
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> BytesColumn:
    valid = _valid(array)
    if valid is not None:
        lengths[~valid] = -1
    return BytesColumn(buffer, starts, lengths)


def _dictionary(array: pa.Array) -> ArrowColumn:
    kind = array.indices.type
    codes = convert(array.indices)
    assert isinstance(codes, Numbers), f"dictionary codes of {kind}"
    places = codes.values.astype(np.int64)
    if codes.valid is not None:
        places[~codes.valid] = -1
    return DictionaryColumn(places, convert(array.dictionary))


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], ArrowColumn]], ...] = (
    (lambda kind: isinstance(kind, pa.FixedShapeTensorType), _tensors),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), lambda array: convert(array.storage)),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_fixed_size_list, _fixed_lists),
    (pa.types.is_fixed_size_binary, _fixed_bytes),
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_string_view, lambda array: convert(array.cast(pa.large_string()))),
    (pa.types.is_binary_view, lambda array: convert(array.cast(pa.large_binary()))),
    (is_text, lambda array: Text(_bytes_column(array))),
    (is_bytes, lambda array: Bytes(_bytes_column(array))),
)
