"""The source of tar shards: samples by id, from byte ranges of the shards.

The shards are opened at the first use, once a process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.arguments import path_text
from shardwise.columns import BytesColumn, Columns
from shardwise.shown import shown
from shardwise.sources.manifest import Manifest
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import SourceTraits
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.lost_shards import expand_shards
from shardwise.sources.tar.index.shard_lists import (
    ListedShard,
    check_counts,
    is_shard_list,
    read_shard_list,
)
from shardwise.sources.tar.read.reader import Reader
from shardwise.sources.tar.read.shards import ShardSet, open_shards
from shardwise.sources.tar.scan.compressed import refuse_compressed
from shardwise.storage import FilePool, StorageOptions, is_local, takes_many_ranges

__all__ = ["TarSource"]


class TarSource:
    """Samples in tar shards, by id: the WebDataset format.

    Adjacent members of one key are a sample: the key is the directory and the base name up to its
    first dot, the field is the rest, in lower case. Members without extension and directories,
    links and names of the form `__x__` are left out; the index counts them.

    The first use of the manifest opens every shard: an index that does not fit its shard is an
    error, a shard without one is indexed at once. One key may stand in two shards, as two samples;
    within a shard that is an error.

    Args:
        urls: what `shardwise.storage.expand` takes, or a shard list in JSON of wids, open_clip or
            timm (`"index.json"`, `"info.json#train"`), whose counts must be those of the shards.
        index: the directory of the index files; None for beside the shards. Indexes of remote
            shards have a copy on this machine; see `IndexStore`.
        storage: how remote shards are reached; None for the defaults.
        accept_unfinished: whether shards without an end (two blocks of zeros) are taken as they
            are; they may have been cut between two samples.

    Raises:
        MissingShardError: a pattern finds nothing, or an index without its shard.
        DataError: a shard is compressed, or the shard list is malformed.
        ValueError: a shard is named twice, or none is named.
    """

    default_shuffle: Literal["window"] = "window"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        index: str | os.PathLike[str] | None = None,
        storage: StorageOptions | None = None,
        accept_unfinished: bool = False,
    ) -> None:
        self._listed, self.urls = _list(urls, storage)
        for url in self.urls:
            refuse_compressed(url)
        directory = None if index is None else path_text("index", index)
        self._store = IndexStore(directory, storage, accept_unfinished)
        self._pool = FilePool(options=storage)
        self._reader: Reader | None = None
        self._lock: PerProcess[threading.Lock] = PerProcess()

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} shards" if len(self.urls) > 1 else ""
        return f"TarSource({shown(self.urls[0])!r}{more})"

    @cached_property
    def traits(self) -> SourceTraits:
        """Remote shards without a cache cost requests; some stores take many ranges by one."""
        is_remote = self._pool.options.cache is None and not all(map(is_local, self.urls))
        return SourceTraits(
            counts_waits=True,
            random_reads_are_requests=is_remote,
            read_is_one_request=is_remote and all(map(takes_many_ranges, self.urls)),
        )

    @property
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts; the first use opens every shard.

        Raises:
            StaleIndexError: a shard is not the one that its index was made from.
            DataError: a shard is missing or damaged, or not what the shard list says.
            StorageError: something could not be read.
        """
        return self.shards.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields that any sample has, in storage order."""
        return self.shards.fields

    @property
    def shards(self) -> ShardSet:
        """The shards with their indexes; raises as `manifest` does."""
        return self._opened().shards

    def _opened(self) -> Reader:
        """The reader of the opened shards."""
        if self._reader is not None:
            return self._reader
        with self._lock.get(threading.Lock):
            if self._reader is None:
                shards = open_shards(self.urls, store=self._store)
                for url, stat in shards.pins():
                    self._pool.pin(url, stat)
                if self._listed is not None:
                    check_counts(self._listed, shards.manifest.shards)
                self._reader = Reader(shards, self._pool)
            return self._reader

    def read_sample(
        self, sample: int, fields: tuple[str, ...] | None = None
    ) -> tuple[str, list[bytes | None]] | None:
        """Read one sample, in a third of the time that `read` takes for it.

        Args:
            sample: its id, in [0, N).
            fields: as `read` takes them.

        Returns:
            Its key, and the payload of each field in that order; None where its fields lie too far
            apart for one read, or something is wrong: `read` says what.
        """
        reader = self._opened()
        return reader.read_one(sample, reader.shards.fields if fields is None else fields)

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples, and of these the requested fields only.

        Payloads that lie close together are read by one call, in the order of their offsets. All
        columns share one buffer. Any thread may call this.

        Args:
            ids: int64 `[rows]`, in any order, repeats allowed, each in [0, N).
            fields: the fields to read, each one of `self.fields`; None for all.

        Raises:
            DataError: a shard is damaged, missing, cut short, or not the one indexed.
            StorageError: bytes could not be read.
            IndexError: an id is out of range.
            ValueError: a field is not there.
        """
        reader = self._opened()
        shards = reader.shards
        ids = np.asarray(ids, dtype=np.int64)
        names = shards.fields if fields is None else tuple(fields)
        if fields is not None and not shards.has_fields(names):
            wrong = next(name for name in names if name not in shards.fields)
            known = ", ".join(shards.fields) or "none"
            raise ValueError(f"no field {wrong!r}: the shards have {known}")
        shards.manifest.check(ids)
        if len(ids) == 1:
            sample = reader.read_one(ids.item(), names)
            if sample is not None:
                return _columns_of_one(ids, names, *sample)
        return reader.read(ids, names)


def _columns_of_one(
    ids: NDArray[np.int64], names: tuple[str, ...], key: str, values: list[bytes | None]
) -> Columns:
    """One sample as columns."""
    columns: dict[str, Sequence[Any]] = {}
    for name, value in zip(names, values, strict=True):
        length = -1 if value is None else len(value)
        buffer = np.frombuffer(value or b"", np.uint8)
        columns[name] = BytesColumn(buffer, _START, np.array([length], dtype=np.int64))
    return Columns(ids, [key], columns, sum(len(value) for value in values if value))


_START = np.zeros(1, np.int64)


def _list(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    storage: StorageOptions | None,
) -> tuple[list[ListedShard] | None, list[str]]:
    """The entries of shard lists, None where there are none, and the URLs of the shards."""
    is_many = isinstance(urls, Sequence) and not isinstance(urls, str)
    items: list[Any] = [*urls] if is_many else [urls]  # type: ignore[misc]
    are_lists = [isinstance(i, str | os.PathLike) and is_shard_list(os.fspath(i)) for i in items]
    if not any(are_lists):
        return None, expand_shards(urls, options=storage)
    if not all(are_lists):
        raise ValueError("urls mixes shard lists (.json) with shards: give one or the other")
    listed = [
        shard for item in items for shard in read_shard_list(os.fspath(item), options=storage)
    ]
    names = [shard.url for shard in listed]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"the shard {shown(twice)!r} is listed twice: its samples would be read twice"
        )
    return listed, names
