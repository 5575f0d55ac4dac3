"""One Parquet shard: rows of the samples, the key as its own column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shardwise.base.errors import MissingExtraError
from shardwise.sources.tar.write.encode import encode_sample

# Rows are flushed as a row group at this many bytes or rows: what a reader loads at a time.
_GROUP_BYTES, _GROUP_ROWS = 16 << 20, 10_000


class ParquetShard:
    """Collects samples into the row groups of one file. Types are those of the first row group.

    Numbers, texts, bytes and one-dimensional arrays of numbers are values of Parquet; what else
    `TarWriter` can encode goes in as bytes.
    """

    def __init__(self, path: str) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow is not installed", extra="parquet") from error
        self._pa, self._pq = pa, pq
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._num_bytes = 0
        self._writer: Any = None

    def encode(self, sample: dict[str, Any]) -> tuple[str, Any]:
        """A sample's key, and what `add` takes: the values of a row."""
        key = sample["__key__"]
        if not isinstance(key, str):
            raise TypeError(f"'__key__' must be a str, not {key!r}")
        return key, {name: _value(name, value) for name, value in sample.items()}

    def add(self, encoded: Any) -> None:
        """Append a row."""
        self._rows.append(encoded)
        self._num_bytes += sum(
            len(value) if isinstance(value, bytes | str | list) else 8 for value in encoded.values()
        )
        if self._num_bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> int:
        """Write what is left; the file's bytes."""
        self._flush()
        self._writer.close()
        return Path(self._path).stat().st_size

    def _flush(self) -> None:
        if not self._rows:
            return
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        schema = None if self._writer is None else self._writer.schema
        columns = {name: [row.get(name) for row in self._rows] for name in names}
        if schema is not None and (new := set(names) - set(schema.names)):
            raise ValueError(
                f"{sorted(new)[0]!r} is in no sample of the first row group: give all samples the "
                "same fields"
            )
        if schema is not None:
            columns = {name: columns.get(name, [None] * len(self._rows)) for name in schema.names}
        table = self._pa.table(columns, schema=schema)
        if self._writer is None:
            self._writer = self._pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._rows, self._num_bytes = [], 0


def _value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | list):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
        return value.tolist()
    field = f"{name}.npy" if isinstance(value, np.ndarray) and "." not in name else name
    return encode_sample({"__key__": "k", field.lower(): value})[1][0][1]
