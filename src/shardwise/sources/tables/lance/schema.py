"""The columns of a table as fields: what they are called, what they hold, how Lance is asked.

Imports pyarrow, errors, the Arrow conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from shardwise.errors import DataError
from shardwise.plan import WindowShape
from shardwise.sources.protocol import SourceTraits
from shardwise.sources.tables.arrow import columns as arrow

if TYPE_CHECKING:
    from shardwise.sources.tables.lance.table import Description

__all__ = ["KEY", "TableForm"]

# The column that has the samples' keys, where there is one; and names that a batch needs itself.
KEY = "__key__"
_RESERVED = ("__index__", "__valid__")
# What Lance knows of a row beside its columns.
_ROW_FIELDS = (pa.field("_rowid", pa.uint64()), pa.field("_rowaddr", pa.uint64()))

# A lane's window is a run of rows, which Lance reads at once; 128 lanes mix a batch well.
_WINDOW = WindowShape(lanes=128, window=1024)


class TableForm:
    """The columns as fields: their types, which are blobs, and what to ask Lance for."""

    def __init__(self, about: Description, uri: str) -> None:
        schema = pa.schema([*about.schema, *_ROW_FIELDS])
        types = arrow.field_types(about.schema)
        for name in types:
            if name in _RESERVED:
                raise DataError(
                    f"the column {name!r} is called what a batch calls something of its own: "
                    "rename it",
                    url=uri,
                    field=name,
                )
        self.has_keys = types.pop(KEY, None) is not None
        self.fields = tuple(types)
        every = arrow.field_types(schema, parts=True)
        self.types = {name: kind for name, kind in every.items() if name != KEY}
        self.blobs = about.blobs
        layouts = arrow.layouts(schema)
        self.traits = SourceTraits(
            value_fields=arrow.value_fields(schema) - {KEY},
            layouts={name: layouts[name] for name in self.types if name in layouts},
            parts=tuple(name for name in self.types if name not in types),
            window_shape=_WINDOW,
        )
        self.no_rows = arrow.no_rows(schema)
        # Lance tells the parts of a struct by dots: where one has a dot itself, all are read.
        whole = {field.name for field in about.schema if _has_dots(field.type)}
        tops = {name: name.partition(".")[0] for name in self.types}
        self._paths = {name: top if top in whole else name for name, top in tops.items()}
        self._paths[KEY] = KEY

    def paths_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """What to ask Lance for, to have these fields."""
        return tuple(dict.fromkeys(self._paths[name] for name in names))


def _has_dots(kind: pa.DataType) -> bool:
    """Whether a part of a struct has a dot in its name."""
    if not hasattr(kind, "fields"):
        return False
    return any("." in field.name or _has_dots(field.type) for field in kind.fields)
