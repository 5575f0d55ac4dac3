"""Arrow's arrays are checked before anything looks into them: Arrow and numpy trust an offset.

What is checked is that every offset, code and length lies in its buffer: 1 ns a row. Whether texts
are UTF-8 is checked where a row is taken, so that a row of a mapped file reads no other rows' text;
inside of maps, unions and views, which only pyarrow takes apart, it is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from shardwise.base.errors import DataError

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
