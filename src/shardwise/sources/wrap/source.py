"""Any map-style dataset as a source: whatever has `__len__` and `__getitem__`.

Its values are objects, not stored bytes, so that columns are lists. Sample i is item i: the order,
the counts and the ranks are ours, the reading is the dataset's own.
"""

from __future__ import annotations

import os
from collections import UserString
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from mmap import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns, key_text
from shardwise.base.errors import DataError, MissingExtraError, StorageError, message_of
from shardwise.base.foreign_bytes import is_signal
from shardwise.base.hints import call_for
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.protocol import SourceTraits
from shardwise.sources.wrap.identity import identity_of


def _kind_of(dataset: Any) -> str:
    return f"wrap {identity_of(dataset)}"


class WrapSource:
    """A map-style dataset, seen as one shard of objects; `shardwise.wrap` documents its fields.

    The fields are those of item 0; a value None counts as a field that the sample lacks. Several
    threads may read at once.
    """

    # Decoders are applied to objects as they are; nothing is laid out in bytes.
    traits = SourceTraits(holds_objects=True)
    default_shuffle: Literal["full"] = "full"

    def __init__(
        self, dataset: Any, *, undecoded: Callable[[Any, Sequence[str]], Any] | None = None
    ) -> None:
        _refuse_table(dataset)
        kind = type(dataset).__name__
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise TypeError(
                    f"wrap() needs a dataset with __len__ and __getitem__, and {kind} has no "
                    f"{method}: an iterable one has to be stored first, say by sw.TarWriter"
                )
        self.dataset = dataset
        self._kind = kind
        self._fields: tuple[str, ...] | None = None
        self._undecoded = undecoded
        self.manifest = Manifest(
            partial(_kind_of, dataset), [Shard(f"wrap:{kind}", len(dataset), 0)]
        )

    def __repr__(self) -> str:
        return f"WrapSource({self._kind}, {self.manifest.num_samples} samples)"

    @property
    def fields(self) -> tuple[str, ...]:
        if self._fields is None:
            first = self._name_fields(0, self._item(0))[1] if self.manifest.num_samples else ()
            self._fields = tuple(first)
        return self._fields

    def undecoded(self, names: Sequence[str]) -> WrapSource:
        if self._undecoded is None or not names:
            return self
        raw = self._undecoded(self.dataset, names)
        if raw is self.dataset:
            return self
        source = WrapSource(raw, undecoded=self._undecoded)
        source.manifest, source._kind = self.manifest, self._kind
        return source

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        indices: list[int] = ids.tolist()
        items = zip(indices, self._items(indices), strict=True)
        samples = [self._name_fields(i, item) for i, item in items]
        if fields is None:
            fields = self.fields
            for i, (key, sample) in zip(indices, samples, strict=True):
                odd = next((name for name in sample if name not in fields), None)
                if odd is not None:
                    raise self._error(
                        i,
                        f"the item has a field {odd!r}, which item 0 does not have: select() "
                        f"some of {', '.join(map(repr, fields))}",
                        key=key,
                        field=odd,
                    )
        columns: dict[str, Sequence[Any]] = {
            name: [sample.get(name) for _, sample in samples] for name in fields
        }
        return Columns(ids, [key for key, _ in samples], columns)

    def _items(self, indices: list[int]) -> list[Any]:
        getitems = getattr(self.dataset, "__getitems__", None)
        if getitems is None or not indices:
            return [self._item(i) for i in indices]
        try:
            items = list(getitems(indices))
        except BaseException as exc:
            if is_signal(exc):
                raise
            # The user's code: anything may come. One by one, the bad item names itself.
            for i in indices:
                self._item(i)
            raise
        if len(items) != len(indices):
            raise DataError(
                f"{self._kind}.__getitems__ returned {len(items)} items for {len(indices)} indices",
                url=self.manifest.shards[0].url,
            )
        return items

    def _item(self, i: int) -> Any:
        try:
            return self.dataset[i]
        except (MissingExtraError, StorageError):
            raise
        except BaseException as exc:  # the dataset is the user's code: anything may come
            if is_signal(exc):
                raise
            message = f"{self._kind}[{i}] raised {type(exc).__name__}: {message_of(exc)}"
            raise self._error(i, message) from exc

    def _name_fields(self, i: int, item: Any) -> tuple[str, dict[str, Any]]:
        if isinstance(item, Mapping):
            sample = dict(item)
            try:
                key = key_text(sample.pop("__key__", i))
            except ValueError as error:
                raise self._error(i, str(error)) from None
            for name in sample:
                if not isinstance(name, str):
                    raise self._error(
                        i, f"the item has a field {name!r}: names of fields are str", key=key
                    )
            return key, sample
        if isinstance(item, (tuple, list)):
            return str(i), {str(place): value for place, value in enumerate(item)}
        return str(i), {"value": item}

    def _error(
        self, i: int, message: str, *, key: str | None = None, field: str | None = None
    ) -> DataError:
        url = self.manifest.shards[0].url
        return DataError(message, url=url, key=str(i) if key is None else key, field=field, index=i)


def _refuse_table(dataset: Any) -> None:
    """Refuse objects with a length and items that are not samples, with what to do instead."""
    if isinstance(dataset, str | bytes | os.PathLike):
        raise TypeError(
            f"wrap() needs a dataset, not a {type(dataset).__name__}: a path is opened by "
            f"{call_for(dataset)}; samples in memory stand in a list, wrap([...])"
        )
    if isinstance(dataset, bytearray | memoryview | mmap | UserString):
        raise TypeError(f"wrap() needs a dataset, not a {type(dataset).__name__}: give a list")
    package, name = type(dataset).__module__.partition(".")[0], type(dataset).__name__
    remedy = {
        ("pandas", "DataFrame"): "its records, wrap(df.to_dict('records'))",
        ("polars", "DataFrame"): "its rows, wrap(df.to_dicts())",
        ("pyarrow", "Table"): "its rows, wrap(table.to_pylist())",
        ("pyarrow", "RecordBatch"): "its rows, wrap(batch.to_pylist())",
        ("lance", "LanceDataset"): "it to sw.lance, which reads the version that is open",
    }.get((package, name))
    if package == "datasets":
        if name == "DatasetDict":
            first = next(iter(dataset), "train")
            remedy = f"one of its splits, such as wrap(dataset[{first!r}])"
        elif name == "Dataset" and dataset.format["type"] in ("arrow", "pandas", "polars"):
            remedy = "the dataset without its format, wrap(dataset.with_format(None))"
            name = f"Dataset with the format {dataset.format['type']!r}"
    if remedy is None and isinstance(dataset, Mapping):
        package = "plain"
        remedy = (
            "a list of samples, wrap(list(data.values())); of columns, "
            "wrap([dict(zip(data, row)) for row in zip(*data.values())])"
        )
    if remedy is not None:
        is_table = name in ("DataFrame", "Table", "RecordBatch")
        more = ", or write it to a Parquet file for sw.parquet" if is_table else ""
        raise TypeError(
            f"wrap() needs a dataset of samples, not a {package} {name}: give {remedy}{more}"
        )
