"""The fields of a table and the form of their columns, from an Arrow schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from shardwise.base.columns import Layout
from shardwise.base.errors import DataError
from shardwise.plan import WindowShape
from shardwise.sources.protocol import SourceTraits

# The column that has the samples' keys, where there is one.
KEY = "__key__"


def field_types(schema: pa.Schema, *, parts: bool = False) -> dict[str, pa.DataType]:
    """The fields of a table with their types: structs are taken apart.

    A struct of bytes and path, as Hugging Face keeps media, is one field; with `parts` three.
    """
    types: dict[str, pa.DataType] = {}
    for name, kind in _leaves(schema, "", parts=parts):
        if name in types:
            raise DataError(f"two columns are called {name!r}: rename one", field=name)
        types[name] = kind
    return types


def _leaves(fields: Any, prefix: str, *, parts: bool) -> Iterator[tuple[str, pa.DataType]]:
    for field in fields:
        name, kind = prefix + field.name, field.type
        if not pa.types.is_struct(kind):
            yield name, kind
            continue
        if _is_media(kind):
            yield name, kind.field("bytes").type
        if parts or not _is_media(kind):
            yield from _leaves(list(kind), f"{name}.", parts=parts)


def _is_media(kind: pa.StructType) -> bool:
    """Whether a struct is how Hugging Face datasets keep an image, or audio."""
    types = {field.name: field.type for field in kind}
    if types.keys() != {"bytes", "path"} or not is_bytes(types["bytes"]):
        return False
    return is_text(types["path"]) or pa.types.is_null(types["path"])


def traits_of(
    schema: pa.Schema, *, parts: tuple[str, ...] = (), window_shape: WindowShape | None = None
) -> SourceTraits:
    """The traits of a table's source: all fields but the binary ones are values."""
    types = field_types(schema, parts=True)
    return SourceTraits(
        value_fields=frozenset(n for n, kind in types.items() if n != KEY and not is_bytes(kind)),
        layouts={name: form for name, form in layouts(schema).items() if name != KEY},
        parts=parts,
        window_shape=window_shape,
    )


def layouts(schema: pa.Schema) -> dict[str, Layout]:
    """Shape and dtype of a row of the fields that have a fixed one."""
    forms = {name: _layout(kind) for name, kind in field_types(schema).items()}
    return {name: layout for name, layout in forms.items() if layout is not None}


def check_names(names: Collection[str], known: Collection[str], *, url: str | None = None) -> None:
    """Refuse a field that is not there, with those that are."""
    there_are = frozenset(known)
    for name in names:
        if name not in there_are:
            there = ", ".join(map(repr, known)) or "none"
            raise DataError(f"no column {name!r}: the columns are {there}", url=url, field=name)


def expand_names(
    names: Collection[str], known: Collection[str], *, url: str | None = None
) -> tuple[str, ...]:
    """Fields by name, each once; a struct's name stands for all its fields."""
    fields: list[str] = []
    for name in names:
        parts = [each for each in known if name not in known and each.startswith(f"{name}.")]
        if not parts:
            check_names([name], known, url=url)
        fields += parts or [name]
    return tuple(dict.fromkeys(fields))


def no_values(kind: pa.DataType, count: int = 0) -> pa.Array:
    """A column of `count` nulls; pyarrow's own `nulls` has none of extension types."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(count, kind.storage_type))
    return pa.nulls(count, kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that lies under extensions and dictionaries."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind):
            kind = kind.value_type
        else:
            return kind


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is binary of any kind, under extensions and dictionaries too."""
    kind = plain_type(kind)
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a string of any kind."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def number_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """The dtype of a number, as its bytes lie in the buffer; None for everything else."""
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    if types.is_temporal(kind) and not types.is_interval(kind):
        return np.dtype(f"int{kind.bit_width}")
    return None


def _layout(kind: pa.DataType) -> Layout | None:
    shape: tuple[int, ...] = ()
    while True:
        if isinstance(kind, pa.FixedShapeTensorType):
            axes = kind.permutation or range(len(kind.shape))
            shape += tuple(kind.shape[axis] for axis in axes)
            kind = kind.value_type
            break
        kind = plain_type(kind)
        if not pa.types.is_fixed_size_list(kind):
            break
        shape += (kind.list_size,)
        kind = kind.value_type
    dtype = number_dtype(kind)
    return None if dtype is None else (shape, dtype)
