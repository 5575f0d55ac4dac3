"""The fields of a table whose files may differ: which there are, and the type of each.

Keeps a part of I6: two files that disagree about a column that is read are an error when the
table is opened, or one type that `schema=` names; columns that are not read may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from shardwise.base.errors import DataError
from shardwise.extensions.tables.arrow.types import (
    KEY,
    expand_names,
    field_types,
    no_values,
    plain_type,
)
from shardwise.extensions.tables.parquet.parquet_file import FileInfo


@dataclass(frozen=True)
class ColumnOptions:
    """The columns that a program requests: names, types to cast to (`whole`: no others), fill."""

    columns: tuple[str, ...] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    whole: bool = False
    fill: Any = None

    @classmethod
    def of(cls, columns: Sequence[str] | None, schema: Any, fill: Any) -> ColumnOptions:
        """Make options from the arguments of `sw.parquet`."""
        columns = None if columns is None else tuple(columns)
        if schema is None:
            return cls(columns, fill=fill)
        if isinstance(schema, pa.Schema):
            return cls(columns, field_types(schema), whole=True, fill=fill)
        if not isinstance(schema, Mapping):
            raise TypeError(f"schema={schema!r}: give a pyarrow schema, or a dict of name: type")
        named = pa.schema([(name, _type_of(name, kind)) for name, kind in schema.items()])
        return cls(columns, field_types(named), fill=fill)


@dataclass(frozen=True)
class TableFields:
    """The fields that files hold, parts read only by name, types, casts, and directories'."""

    stored: tuple[str, ...]
    parts: tuple[str, ...]
    types: dict[str, pa.DataType]
    casts: dict[str, pa.DataType]
    partitions: tuple[str, ...]

    @property
    def has_keys(self) -> bool:
        """Whether a column has the samples' keys."""
        return KEY in self.types


def fields_of(
    infos: Sequence[FileInfo], partitions: Mapping[str, pa.DataType], options: ColumnOptions
) -> TableFields:
    """Find the fields of a table's files, one or more, and of their directories."""
    schemas = [_FileSchema(info) for info in _different(infos)]
    known = tuple(dict.fromkeys(name for s in schemas for name in s.fields if name != KEY))
    parts = tuple(dict.fromkeys(name for s in schemas for name in s.parts))
    dirs = tuple(name for name in partitions if name not in known)
    if options.whole:
        known = tuple(name for name in options.types if name not in (*dirs, KEY))
        dirs = tuple(name for name in dirs if name in options.types)
    else:
        known += tuple(n for n in options.types if n not in (*known, *dirs, *parts, KEY))
    if options.columns is not None:
        every = (*known, *dirs, *parts)
        chosen = set(expand_names(options.columns, every, url=infos[0].url))
        known, parts = (tuple(n for n in every if n in chosen and n not in dirs), ())
        dirs = tuple(name for name in dirs if name in chosen)
    types = {name: _common_type(name, schemas, options) for name in known}
    if any(KEY in s.types for s in schemas):
        types[KEY] = _common_type(KEY, schemas, options)
    types |= {name: s.types[name] for name in parts for s in schemas if name in s.types}
    types |= {name: options.types.get(name, partitions[name]) for name in dirs}
    casts = {n: kind for n, kind in options.types.items() if n in types and n not in dirs}
    return TableFields(known, parts, types, casts, dirs)


def cast_column(column: Any, kind: pa.DataType | None, num_rows: int, name: str) -> Any:
    """A file's column cast to `kind`, unless that is None; nulls where the file lacks it."""
    if column is None:
        return no_values(kind, num_rows)
    if kind is None or column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"the column {name!r} is {column.type}, and can't be cast to the {kind} of schema=: "
            f"{error}",
            field=name,
        ) from error


class _FileSchema:
    """Files that have one schema: the first one's url, their fields, types, and parts of media."""

    def __init__(self, info: FileInfo) -> None:
        self.url = info.url
        try:
            fields = field_types(info.schema)
            self.types = field_types(info.schema, parts=True)
        except DataError as error:
            error.url = info.url
            raise
        self.fields = tuple(fields)
        self.parts = [name for name in self.types if name not in fields]


def _different(infos: Sequence[FileInfo]) -> list[FileInfo]:
    firsts: list[FileInfo] = []
    for info in infos:
        # Most files are alike to the letter.
        if not any(info.schema.equals(other.schema) for other in firsts):
            firsts.append(info)
    return firsts


def _common_type(name: str, schemas: Sequence[_FileSchema], options: ColumnOptions) -> pa.DataType:
    cast = options.types.get(name)
    if cast is not None:
        _check_casts(name, cast, schemas, options.fill)
        return cast
    first = schemas[0]
    for schema in schemas[1:]:
        mine, theirs = _form(schema.types.get(name)), _form(first.types.get(name))
        if mine != theirs:
            common = _wider(each.types[name] for each in schemas if name in each.types)
            raise DataError(
                f"the column {name!r} is {mine}, in {first.url!r} it is {theirs}: give all files "
                f"one type by schema={{{name!r}: {common}}} (what is not there is null, or what "
                "fill= says), or read other columns= only",
                url=schema.url,
                field=name,
            )
    return first.types[name]


def _check_casts(name: str, cast: pa.DataType, schemas: Sequence[_FileSchema], fill: Any) -> None:
    there = [schema for schema in schemas if name in schema.types]
    if not there and not (isinstance(fill, Mapping) and name in fill):
        raise DataError(
            f"schema= names the column {name!r}, which no file has: the columns are "
            f"{', '.join(map(repr, schemas[0].fields))}; to make it up, say what it holds by "
            f"fill={{{name!r}: ...}}",
            url=schemas[0].url,
            field=name,
        )
    for schema in there:
        try:
            cast_column(no_values(schema.types[name]), cast, 0, name)
        except DataError as error:
            error.url = schema.url
            raise


def _form(kind: pa.DataType | None) -> str:
    """A type as files must agree on it: all kinds of strings are alike, and of binary."""
    if kind is None:
        return "not there"
    text = str(plain_type(kind))
    for name in ("string", "binary"):
        if text in (name, f"large_{name}", f"{name}_view"):
            return name
    return text


def _wider(kinds: Iterable[pa.DataType]) -> str:
    """A type that holds the values of all these, as `schema=` takes it."""
    schemas = [pa.schema([("x", kind)]) for kind in kinds]
    try:
        kind = pa.unify_schemas(schemas, promote_options="permissive").field("x").type
        return repr(str(kind)) if pa.type_for_alias(str(kind)) == kind else "..."
    except (pa.ArrowException, ValueError):
        return "..."


def _type_of(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(kind)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(
            f"schema={{{name!r}: {kind!r}}}: give a pyarrow type, or the name of one: {error}"
        ) from error
