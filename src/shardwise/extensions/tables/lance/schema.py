"""The columns of a table as fields: their names and types, and the paths that Lance reads."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardwise.extensions.tables.arrow.types import KEY, field_types, traits_of
from shardwise.extensions.tables.lance.selection import Description
from shardwise.plan import WindowShape

# Lance's fields of a row beside its columns.
_ROW_FIELDS = (pa.field("_rowid", pa.uint64()), pa.field("_rowaddr", pa.uint64()))
# A lane's window is a run of rows, which Lance reads at once; 128 lanes mix a batch well.
_WINDOW = WindowShape(lanes=128, window=1024)


class TableSchema:
    """The columns as fields."""

    def __init__(self, description: Description) -> None:
        schema = pa.schema([*description.schema, *_ROW_FIELDS])
        stored = field_types(description.schema)
        self.has_keys = KEY in stored
        self.fields = tuple(name for name in stored if name != KEY)
        self.types = field_types(schema, parts=True)
        self.names = tuple(name for name in self.types if name != KEY)
        self.blobs = description.blobs
        parts = tuple(name for name in self.names if name not in stored)
        self.traits = traits_of(schema, parts=parts, window_shape=_WINDOW)
        # Lance separates the parts of a struct by dots: where a name has one itself, all are read.
        whole = {field.name for field in description.schema if _has_dots(field.type)}
        tops = {name: name.partition(".")[0] for name in self.names}
        self._paths = {name: top if top in whole else name for name, top in tops.items()}
        self._paths[KEY] = KEY

    def paths_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """The paths of some fields, as Lance takes them."""
        return tuple(dict.fromkeys(self._paths[name] for name in names))


def _has_dots(kind: pa.DataType) -> bool:
    if not hasattr(kind, "fields"):
        return False
    return any("." in field.name or _has_dots(field.type) for field in kind.fields)
