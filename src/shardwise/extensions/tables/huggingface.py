"""A Hugging Face dataset in memory or mapped, as columns of the dataset's Arrow table.

Row by row, as any map-style dataset, a row costs some 5 µs; by its table a fraction of one. Only
where both give the same names: with a format or a transform set, columns that are decoded on
the way (images, audio) or structs, it is a map-style dataset like others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.columns import Columns
from shardwise.extensions.tables.arrow.columns import BatchColumns, empty_columns, gather, key_texts
from shardwise.extensions.tables.arrow.types import KEY, check_names, field_types, traits_of
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import Source
from shardwise.sources.wrap.source import WrapSource


def wrap_dataset(dataset: Any) -> Source:
    """Return the source of a `datasets.Dataset`: its table's columns, or else row by row."""
    if is_columnar(dataset):
        return HuggingFaceSource(dataset)
    return WrapSource(dataset, undecoded=undecoded)


def is_columnar(dataset: Any) -> bool:
    """Whether rows are the table's columns: no format, transform, struct or decoded feature."""
    if dataset.format["type"] is not None or len(dataset.format["columns"]) < dataset.num_columns:
        return False
    if any(_decodes(feature) for feature in dataset.features.values()):
        return False
    return not any(_has_struct(field.type) for field in dataset.data.schema)


def _decodes(feature: Any) -> bool:
    """Whether a feature makes something else of what is stored, itself or inside."""
    if isinstance(feature, Mapping):
        return any(map(_decodes, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_decodes, feature))
    inner = getattr(feature, "feature", None)
    return hasattr(feature, "decode_example") or (inner is not None and _decodes(inner))


def _has_struct(kind: pa.DataType) -> bool:
    parts = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_struct(kind) or any(map(_has_struct, parts))


def undecoded(dataset: Any, names: Sequence[str]) -> Any:
    """The dataset with stored bytes for these images and sounds, if no format is set."""
    if dataset.format["type"] is not None:
        return dataset
    # Features that are stored as bytes and a path, and decoded by default.
    known = {name: dataset.features.get(name) for name in names}
    stored = [n for n, f in known.items() if hasattr(f, "decode") and hasattr(f, "decode_example")]
    for name in stored:
        if dataset.features[name].decode:
            dataset = dataset.cast_column(name, type(dataset.features[name])(decode=False))
    return _Stored(dataset, tuple(stored)) if stored else dataset


class _Stored:
    """Rows of a dataset; some fields are replaced by the bytes of {"bytes": ..., "path": ...}."""

    def __init__(self, dataset: Any, names: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._names = names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self._dataset[index]
        return row | {name: _payload(row[name]) for name in self._names}


def _payload(stored: Mapping[str, Any] | None) -> bytes | None:
    """The bytes, or those of the file that the dataset names instead."""
    if stored is None or stored["bytes"] is not None or stored["path"] is None:
        return None if stored is None else stored["bytes"]
    return Path(stored["path"]).read_bytes()


class HuggingFaceSource:
    """A `datasets.Dataset` for which `is_columnar` holds, by its Arrow table."""

    default_shuffle: Literal["full"] = "full"

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        kind = type(dataset).__name__
        shards = [Shard(f"wrap:{kind}", len(dataset), 0)]
        self.manifest = Manifest(f"wrap {dataset._fingerprint}", shards)
        schema = dataset.data.schema
        self.fields = tuple(name for name in field_types(schema) if name != KEY)
        self.traits = traits_of(schema)
        self._has_keys = KEY in schema.names
        self._table: PerProcess[_Table] = PerProcess()

    def __repr__(self) -> str:
        return f"HuggingFaceSource({self.manifest.num_samples} rows)"

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        names = self.fields if fields is None else tuple(fields)
        url = self.manifest.shards[0].url
        check_names(names, self.fields, url=url)
        if self._has_keys:
            names += (KEY,)

        if len(ids):
            table = self._table.get(lambda: _Table(self.dataset))
            batches, rows = table.locate(ids)
            columns = gather(
                names,
                batches,
                rows,
                lambda batch: table.batches[batch].columns(names),
                ids=ids,
                locate=lambda row: (url, str(ids[row])),
            )
        else:
            columns = empty_columns(field_types(self.dataset.data.schema), names)
        keys = columns.pop(KEY) if self._has_keys else ids.tolist()
        return Columns(ids, key_texts(keys, lambda _: url), columns)


class _Table:
    """The record batches of a dataset's table, and where its rows lie in them."""

    def __init__(self, dataset: Any) -> None:
        batches = dataset.data.table.to_batches()
        self.batches = [BatchColumns(batch) for batch in batches]
        counts = [batch.num_rows for batch in batches]
        self._ends: NDArray[np.int64] = np.cumsum(counts, dtype=np.int64)
        self._sizes = np.array(counts, dtype=np.int64)
        # The result of select() and shuffle(): the rows in their new order.
        mapping = dataset._indices
        self._order: NDArray[np.int64] | None = None
        if mapping is not None:
            column = mapping.table.column(0).combine_chunks()
            self._order = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        places = ids if self._order is None else self._order[ids]
        batch = np.searchsorted(self._ends, places, side="right")
        return batch, places - (self._ends[batch] - self._sizes[batch])
