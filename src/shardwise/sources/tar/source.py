"""The source of tar shards: samples by id, from byte ranges of the shards.

Opens the shards at the first use, once a process. Imports numpy, columns, storage, the manifest
and this package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Columns
from shardwise.sources.manifest import Manifest
from shardwise.sources.tar.compressed import refuse_compressed
from shardwise.sources.tar.dialects import (
    ListedShard,
    check_counts,
    is_shard_list,
    read_shard_list,
)
from shardwise.sources.tar.reader import read_one, read_rows
from shardwise.sources.tar.shards import ShardSet, open_shards
from shardwise.storage import FilePool, expand

__all__ = ["TarSource"]


class TarSource:
    """Samples in tar shards, by id: the WebDataset format.

    Members that stand together and have one key are a sample: the key is the directory and the
    base name up to its first dot, the field what follows, in lower case. Members without extension
    and directories, links and names of the form `__x__` are left out; the index counts them.

    The first use of the manifest looks at every shard: an index that does not fit its shard is an
    error, a shard without one is indexed then and there. One key may stand in two shards, as two
    samples; within a shard that is an error.

    Args:
        urls: what `shardwise.storage.expand` takes, or a shard list in JSON of wids, open_clip or
            timm (`"index.json"`, `"info.json#train"`), whose counts are held against the shards.
        index: the directory of the index files; None for beside the shards.

    Raises:
        MissingShardError: a pattern finds nothing.
        DataError: a shard is compressed, or the shard list is malformed.
        ValueError: a shard is named twice, or nothing was named.
    """

    default_shuffle: Literal["window"] = "window"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        index: str | os.PathLike[str] | None = None,
    ) -> None:
        self._listed, self.urls = _list(urls)
        for url in self.urls:
            refuse_compressed(url)
        self._index_dir = None if index is None else os.fspath(index)
        self._shards: ShardSet | None = None
        self._pool = FilePool()
        self._opening = _Opening()

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} shards" if len(self.urls) > 1 else ""
        return f"TarSource({self.urls[0]!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_opening": _Opening()}

    @property
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts; the first use looks at every shard.

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
        return self._open() if self._shards is None else self._shards

    def _open(self) -> ShardSet:
        opening = self._opening
        if opening.pid != os.getpid():
            # Forked while another thread was opening: its lock would never be free here.
            opening = self._opening = _Opening()
        with opening.lock:
            if self._shards is None:
                found = open_shards(self.urls, index_dir=self._index_dir)
                if self._listed is not None:
                    check_counts(self._listed, found.manifest.shards)
                self._shards = found
            return self._shards

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples; only the fields asked for are read.

        Payloads that lie close together are read by one call, in the order in which they lie. All
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
        shards = self.shards
        ids = np.asarray(ids, dtype=np.int64)
        names = shards.fields if fields is None else tuple(fields)
        if fields is not None and not shards.has_fields(names):
            wrong = next(name for name in names if name not in shards.fields)
            known = ", ".join(shards.fields) or "none"
            raise ValueError(f"no field {wrong!r}: the shards have {known}")
        if len(ids) == 1 and 0 <= ids.item() < shards.num_samples:
            columns = read_one(shards, self._pool, ids, names)
            if columns is not None:
                return columns
        if len(ids) and not 0 <= ids.min() <= ids.max() < shards.num_samples:
            raise IndexError(
                f"sample ids from {ids.min()} to {ids.max()}: they must lie in "
                f"[0, {shards.num_samples})"
            )
        return read_rows(shards, self._pool, ids, names)


class _Opening:
    """The lock that lets one thread of a process open the shards."""

    __slots__ = ("lock", "pid")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()


def _list(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[list[ListedShard] | None, list[str]]:
    """What shard lists say, if that is what was given, and the URLs of the shards."""
    items = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
    are_lists = [isinstance(i, str | os.PathLike) and is_shard_list(os.fspath(i)) for i in items]
    if not any(are_lists):
        return None, expand(urls)
    if not all(are_lists):
        raise ValueError("urls mixes shard lists (.json) with shards: give one or the other")
    listed = [shard for item in items for shard in read_shard_list(os.fspath(item))]
    found = [shard.url for shard in listed]
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise ValueError(f"the shard {twice!r} is listed twice: its samples would be read twice")
    return listed, found
