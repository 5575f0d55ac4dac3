"""The media of tar shards by sample: their indexes from sidecars, their bytes by ranges."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.shown import in_command, shown
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.tar.build import open_sidecar
from shardwise.extensions.media.tar.sidecar import MediaSidecar
from shardwise.sources.per_process import PerProcess
from shardwise.sources.tar.read.ranges import plan_reads
from shardwise.storage import FilePool, read_files

if TYPE_CHECKING:
    from shardwise.sources.tar.index.index_store import IndexStore
    from shardwise.sources.tar.read.shards import ShardSet

# Sidecars that are kept in memory, and coded frames of parsed indexes, at 50 bytes each.
_MAX_SIDECARS, _MAX_FRAMES = 64, 1_000_000


class TarMedia:
    """The media files of one field of tar shards; sidecars lie beside the indexes of `store`."""

    def __init__(
        self, shards: Callable[[], ShardSet], *, store: IndexStore, pool: FilePool, field: str
    ) -> None:
        self._shards = shards
        self._store = store
        self._pool = pool
        self._field = field
        self._lock: PerProcess[threading.Lock] = PerProcess()
        self._sidecars: OrderedDict[int, MediaSidecar] = OrderedDict()
        self._indexes: OrderedDict[int, MediaIndex] = OrderedDict()
        self._num_frames = 0

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {
            "_sidecars": OrderedDict(), "_indexes": OrderedDict(), "_num_frames": 0,
        }  # fmt: skip
        return self.__dict__ | empty

    def identity(self) -> str:
        """Changes when a sidecar does: 16 hex digits of the headers of all."""
        digest = hashlib.sha256()
        for shard in np.flatnonzero(self._shards().manifest.sizes).tolist():
            digest.update(self._sidecar(shard).identity)
        return digest.hexdigest()[:16]

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file; DataError if there is none that can be used."""
        with self._lock.get(threading.Lock):
            known = self._indexes.get(sample)
        if known is not None:
            return known
        try:
            index = self._index(sample)
        except DataError as error:
            url, key = self.place(sample)
            raise DataError(error.reason, url=url, key=key, field=self._field) from error
        with self._lock.get(threading.Lock):
            if self._indexes.setdefault(sample, index) is index:
                self._num_frames += _num_frames(index)
            while self._num_frames > _MAX_FRAMES and len(self._indexes) > 1:
                self._num_frames -= _num_frames(self._indexes.popitem(last=False)[1])
        return index

    def place(self, sample: int) -> tuple[str, str]:
        """The url of the shard, and the key of a sample."""
        shards = self._shards()
        shard, row = shards.locate(sample)
        return shards.manifest.urls[shard], shards.index(shard).keys[row]

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        """Ranges of the files of some samples; all remote ones are in flight at once.

        By sample the ranges (start, stop) in its file, in order and apart; in the result, pairs of
        a range's start and its bytes.

        Raises:
            DataError: a shard is not the one that was indexed, or ends before a range does.
            StorageError: bytes could not be read.
        """
        shards = self._shards()
        owners: list[tuple[int, int]] = []
        # By range its shard, offset and bytes.
        parts: list[tuple[int, int, int]] = []
        for sample, ranges in ranges_of.items():
            shard, row = shards.locate(sample)
            ((base, size),) = shards.index(shard).locate_one((self._field,), row)
            for start, stop in ranges:
                if not 0 <= start <= stop <= size:
                    raise DataError(
                        f"bytes {start} to {stop} are needed of a file of {max(0, size)}",
                        url=shards.manifest.urls[shard], field=self._field, offset=base,
                    )  # fmt: skip
                owners.append((sample, start))
                parts.append((shard, base + start, stop - start))
        plan = plan_reads(*np.array(parts, np.int64).reshape(-1, 3).T)
        buffer = np.empty(plan.num_bytes, np.uint8).data
        read_files(self._pool, plan.by_url(shards.manifest.urls), buffer)
        found: dict[int, list[tuple[int, memoryview]]] = {sample: [] for sample in ranges_of}
        for (sample, start), (*_, length), at in zip(
            owners, parts, plan.starts.tolist(), strict=True
        ):
            found[sample].append((start, buffer[at : at + length].toreadonly()))
        yield from found.items()

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


def _num_frames(index: MediaIndex) -> int:
    return sum(len(track.columns.pts) for track in index.tracks)
