"""The inputs that failed, as a table beside the shards."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shardwise.building.place import Place
from shardwise.building.recipe import Failure

__all__ = ["write_errors"]

_NAMES = ("errors.parquet", "errors.jsonl")
_COLUMNS = ("key", "url", "index", "kind", "reason", "where")


def write_errors(place: Place, failures: Sequence[Failure], *, as_table: bool) -> str | None:
    """Write `errors.parquet`, or `errors.jsonl` where pyarrow is not installed.

    Args:
        place: the output directory.
        failures: the inputs that failed.
        as_table: False for JSON in any case: beside Parquet shards, a table would be read as one.

    Returns:
        The file's name; None without failures: a file of an earlier run is then removed.
    """
    if not failures:
        for name in _NAMES:
            if place.has(name):
                place.remove(name)
        return None
    rows = [asdict(failure) for failure in failures]
    columns = {name: [row[name] for row in rows] for name in _COLUMNS}
    if as_table and (data := _table(columns)) is not None:
        place.write(_NAMES[0], data)
        return _NAMES[0]
    lines = [json.dumps({name: row[name] for name in _COLUMNS}) for row in rows]
    place.write(_NAMES[1], ("\n".join(lines) + "\n").encode())
    return _NAMES[1]


def _table(columns: dict[str, list[Any]]) -> bytes | None:
    """The bytes of a Parquet file; None without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return None
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()
