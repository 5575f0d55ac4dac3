"""The source of tar shards: samples by id, from byte ranges of the shards.

The shards are opened at the first use, once per process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import directory_text
from shardwise.base.columns import BytesColumn, Columns
from shardwise.base.errors import DataError
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.sources.manifest import Manifest
from shardwise.sources.per_process import MadeOnce
from shardwise.sources.protocol import SourceTraits
from shardwise.sources.shard_names import ShardNames
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed_shards import ListedShards
from shardwise.sources.tar.index.opened_shards import OpenedShards
from shardwise.sources.tar.index.shard_items import ShardPart, example_names, named_items, names_of
from shardwise.sources.tar.index.shard_lists import check_counts
from shardwise.sources.tar.read.reader import Reader
from shardwise.sources.tar.read.runs import read_run
from shardwise.sources.tar.read.shards import ShardSet
from shardwise.sources.tar.scan.byte_source import refuse_compressed
from shardwise.sources.tar.sidecar import Sidecar
from shardwise.sources.tar.write.stored import StoredRun, stored_runs
from shardwise.storage import (
    FilePool,
    PoolRanges,
    StorageOptions,
    is_local,
    local_path,
    takes_many_ranges,
)


class TarSource:
    """Samples in tar shards, by id: the WebDataset format.

    Adjacent members of one key are a sample: the key is the directory and the base name up to its
    first dot, the field is the rest, in lower case. Members without extension and directories,
    links and names of the form `__x__` are left out; the index counts them.

    The first use of the manifest opens every shard: an index that does not fit its shard is an
    error, a shard without one is indexed at once. Shards that a manifest file (`*.swm`) lists are
    opened when they are first read, and held against their entries then. One key may stand in two
    shards, as two samples; within a shard that is an error.

    `shardwise.tar` documents the arguments; `check_all` is its `check="all"`. `urls` may also
    be a shard list in JSON of wids, open_clip or timm (`"index.json"`, `"info.json#train"`), whose
    counts must be those of the shards. Manifest files and shards may stand in one list.
    """

    default_shuffle: Literal["window"] = "window"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        index: str | os.PathLike[str] | None = None,
        storage: StorageOptions | None = None,
        accept_unfinished: bool = False,
        check_all: bool = False,
        version: int | str | None = None,
    ) -> None:
        directory = None if index is None else directory_text("index", index)
        self._store = IndexStore(directory, storage, accept_unfinished)
        self._check_all = check_all
        # In order: names of shards, or what is known of opened and of listed ones; and the entries
        # of shard lists (.json).
        self._items, self._listed = named_items(urls, self._store, version)
        for url in example_names(self._items):
            refuse_compressed(url)
        self._pool = FilePool(options=storage)
        self._reader: MadeOnce[Reader] = MadeOnce()

    def __getstate__(self) -> dict[str, Any]:
        """Without the reader, which the parts make again; names of many shards as patterns."""
        items = [ShardNames.of(e) if isinstance(e, Sequence) else e for e in self._items]
        pool = FilePool(options=self._pool.options)
        return self.__dict__ | {"_items": items, "_reader": MadeOnce(), "_pool": pool}

    @property
    def urls(self) -> Sequence[str]:
        return ShardNames.joined([names_of(each) for each in self._items])

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} shards" if len(self.urls) > 1 else ""
        return f"TarSource({shown(self.urls[0])!r}{more})"

    @cached_property
    def _are_local(self) -> bool:
        return all(map(is_local, example_names(self._items)))

    @cached_property
    def traits(self) -> SourceTraits:
        """Remote shards without a cache cost requests; some stores take many ranges by one."""
        is_remote = self._pool.options.cache is None and not self._are_local
        takes_many = all(map(takes_many_ranges, example_names(self._items)))
        return SourceTraits(
            counts_waits=True,
            random_reads_are_requests=is_remote,
            read_is_one_request=is_remote and takes_many,
        )

    @property
    def manifest(self) -> Manifest:
        return self._open_reader().shards.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        return self.shards.fields

    @property
    def directory(self) -> str | None:
        place = self._store.published_path(self.urls[0])
        return os.path.dirname(local_path(place)) or "." if is_local(place) else None  # noqa: PTH120 - keeps './'

    @property
    def removed(self) -> NDArray[np.int64]:
        return self.shards.removed

    def version(self) -> str:
        return self.shards.version()

    @property
    def shards(self) -> ShardSet:
        return self._open_reader().shards

    def media_files(self, field: str) -> Any:
        sidecar: Sidecar = find("sidecars", "media")
        # The shards are opened when they are first requested; a partial pickles.
        shards = partial(getattr, self, "shards")
        return sidecar.open_files(field, shards, store=self._store, pool=self._pool)

    def _open_reader(self) -> Reader:
        return self._reader.value or self._reader.get(self._open)

    def _open(self) -> Reader:
        parts: list[ShardPart] = []
        for item in self._items:
            # Parts that came pickled are open.
            part = OpenedShards(item, self._store) if isinstance(item, Sequence) else item
            parts.append(part)
            if self._check_all and isinstance(part, ListedShards):
                part.check_all()
        shards = ShardSet(parts, self._store, pin=self._pool.pin)
        if self._listed is not None:
            check_counts(self._listed, shards.manifest.shards)
        self._items, self._check_all = [*parts], False
        return Reader(shards, self._pool)

    def read_sample(
        self, sample: int, fields: tuple[str, ...] | None = None
    ) -> tuple[str, list[bytes | None]] | None:
        """Read a key and its payloads in a third of `read`'s time; None where that must do it."""
        reader = self._open_reader()
        if len(reader.shards.removed) and sample in reader.shards.removed:
            return None
        return reader.read_one(sample, reader.shards.fields if fields is None else fields)

    def read_run(
        self, start: int, stop: int, fields: tuple[str, ...] | None = None
    ) -> Iterator[Columns] | None:
        reader = self._open_reader()
        # Requests for remote shards are made by `read`, which also checks digests.
        if reader.shards.has_digests or len(reader.shards.removed) or not self._are_local:
            return None
        return read_run(reader, start, stop, reader.shards.fields if fields is None else fields)

    def stored_runs(self, start: int, stop: int) -> Iterator[StoredRun] | None:
        """Samples `[start, stop)` as they stand in local shards, to be copied; None elsewhere."""
        reader = self._open_reader()
        # A copy would not look at the digests of what it copies.
        if reader.shards.has_digests or len(reader.shards.removed) or not self._are_local:
            return None
        return stored_runs(reader, start, stop)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_: int
    ) -> Iterable[PoolRanges] | None:
        return None if self._are_local else self._open_reader().ranges(ids, fields)

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples; see the protocol. Payloads that lie close together are read by one call."""
        reader = self._open_reader()
        shards = reader.shards
        ids = np.asarray(ids, dtype=np.int64)
        names = shards.fields if fields is None else tuple(fields)
        if fields is not None:
            shards.check_fields(names)
        shards.manifest.check(ids)
        if len(shards.removed) and (gone := ids[np.isin(ids, shards.removed)]).size:
            shard, row = shards.locate(int(gone[0]))
            raise DataError(
                "the sample was removed by `shardwise redact`, and is not read any more",
                url=shards.manifest.urls[shard],
                key=shards.index(shard).keys[row],
                index=int(gone[0]),
            )
        if len(ids) == 1:
            sample = reader.read_one(ids.item(), names)
            if sample is not None:
                return _columns_of_one(ids, names, *sample)
        return reader.read(ids, names)


def _columns_of_one(
    ids: NDArray[np.int64], names: tuple[str, ...], key: str, values: list[bytes | None]
) -> Columns:
    columns: dict[str, Sequence[Any]] = {}
    for name, value in zip(names, values, strict=True):
        length = -1 if value is None else len(value)
        buffer = np.frombuffer(value or b"", np.uint8)
        columns[name] = BytesColumn(buffer, _START, np.array([length], dtype=np.int64))
    return Columns(ids, [key], columns, sum(len(value) for value in values if value))


_START = np.zeros(1, np.int64)
