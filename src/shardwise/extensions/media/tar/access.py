"""The media of tar shards by sample: their indexes from sidecars, their bytes by ranges."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.shown import in_command, shown
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.numbered import index_pictures, numbered_fields
from shardwise.extensions.media.files.ranged_files import FilePlaces, RangedFiles, RecentIndexes
from shardwise.extensions.media.tar.build import open_sidecar
from shardwise.extensions.media.tar.sidecar import MediaSidecar
from shardwise.sources.per_process import PerProcess
from shardwise.storage import FilePool

if TYPE_CHECKING:
    from shardwise.sources.tar.index.index_store import IndexStore
    from shardwise.sources.tar.index.shard_index import ShardIndex
    from shardwise.sources.tar.read.shards import ShardSet

# Sidecars that are kept in memory.
_MAX_SIDECARS = 64


class TarRanges(RangedFiles):
    """Files inside tar shards by sample, for one field, read by ranges."""

    def __init__(self, shards: Callable[[], ShardSet], *, pool: FilePool, field: str) -> None:
        super().__init__(field)
        self._shards = shards
        self._pool = pool

    def place(self, sample: int) -> tuple[str, str]:
        shards = self._shards()
        shard, row = shards.locate(sample)
        return shards.manifest.urls[shard], shards.index(shard).keys[row]

    def find(self, samples: Collection[int]) -> FilePlaces:
        shards = self._shards()
        places = {}
        for sample in samples:
            shard, row = shards.locate(sample)
            places[sample] = (shard, *self._span(shards.index(shard), row))
        return FilePlaces(self._pool, shards.manifest.urls, places)

    def has_index(self, sample: int) -> bool:
        shards = self._shards()
        return shards.is_opened(shards.locate(sample)[0])

    def _span(self, index: ShardIndex, row: int) -> tuple[int, int]:
        """The start of the file, and its number of bytes."""
        (span,) = index.locate_one((self._field,), row)
        return span


class TarMedia(TarRanges):
    """The media files of one field of tar shards; sidecars lie beside the indexes of `store`."""

    def __init__(
        self, shards: Callable[[], ShardSet], *, store: IndexStore, pool: FilePool, field: str
    ) -> None:
        super().__init__(shards, pool=pool, field=field)
        self._store = store
        self._lock: PerProcess[threading.Lock] = PerProcess()
        self._sidecars: OrderedDict[int, MediaSidecar] = OrderedDict()
        self._indexes: RecentIndexes[int] = RecentIndexes()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sidecars": OrderedDict(), "_indexes": RecentIndexes()}

    def identity(self) -> str:
        digest = hashlib.sha256()
        for shard in np.flatnonzero(self._shards().manifest.sizes).tolist():
            digest.update(self._sidecar(shard).identity)
        return digest.hexdigest()[:16]

    def has_index(self, sample: int) -> bool:
        return super().has_index(sample) and self._shards().locate(sample)[0] in self._sidecars

    def index(self, sample: int) -> MediaIndex:
        try:
            return self._indexes.get(sample, self._index)
        except DataError as error:
            url, key = self.place(sample)
            raise DataError(error.reason, url=url, key=key, field=self._field) from error

    def _index(self, sample: int) -> MediaIndex:
        shard, row = self._shards().locate(sample)
        sidecar = self._sidecar(shard)
        fields = sidecar.header.fields
        if self._field not in fields and self._field in self._shards().index(shard).fields:
            raise DataError(
                "the media index was made without this field: make it again with "
                "`shardwise index --media --force`"
            )
        index = sidecar.index(row, self._field) if self._field in fields else None
        if index is None:
            raise DataError(f"the sample has no {self._field!r}")
        return index

    def _sidecar(self, shard: int) -> MediaSidecar:
        with self._lock.get(threading.Lock):
            known = self._sidecars.get(shard)
            if known is not None:
                return known
            url = self._shards().manifest.urls[shard]
            sidecar = open_sidecar(url, store=self._store)
            if sidecar is None:
                raise MissingShardError(
                    f"{shown(url)} has no media index: make one with "
                    f"`shardwise index --media {in_command(url)}`, or write shards with "
                    "TarWriter(media=True)"
                )
            self._sidecars[shard] = sidecar
            while len(self._sidecars) > _MAX_SIDECARS:
                self._sidecars.popitem(last=False)
            return sidecar


class TarPictures(TarRanges):
    """Numbered pictures of samples of tar shards, a video each, whose file is the shard."""

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(numbered_fields(self._field, self._shards().fields))

    def identity(self) -> str:
        return ""

    def index(self, sample: int) -> MediaIndex:
        shards = self._shards()
        shard, row = shards.locate(sample)
        index = shards.index(shard)
        places = [each for each in index.locate_one(self._names, row) if each[1] >= 0]
        if not places:
            url, key = self.place(sample)
            raise DataError("the sample has no such picture", url=url, key=key, field=self._field)
        return index_pictures(places, index.num_bytes)

    def _span(self, index: ShardIndex, row: int) -> tuple[int, int]:  # noqa: ARG002 - one for all
        return 0, index.num_bytes
