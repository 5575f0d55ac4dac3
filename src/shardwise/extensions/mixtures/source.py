"""The source of a mixture: concatenated datasets, each read in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns, merge_columns
from shardwise.base.counters import Stages
from shardwise.base.errors import DataError
from shardwise.dataset.dataset import Dataset
from shardwise.dataset.samples import rows_by_part
from shardwise.extensions.mixtures.options import key_of
from shardwise.plan import mix
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.protocol import SourceTraits, joined_ranges
from shardwise.sources.samples import DecodeWatch, LoadRequest, joined_removed
from shardwise.storage import PoolRanges

# The field that names a sample's dataset.
SOURCE = "__source__"
# Samples of a dataset that are tried for the fields that its functions return.
_NUM_TRIED = 16

_Ids = NDArray[np.int64]


class MixSource:
    """Decoded datasets, concatenated as one source, with epoch 0's randomness of seed 0."""

    default_shuffle: Literal["full", "window"] = "full"

    def __init__(self, parts: Mapping[str, Dataset]) -> None:
        self.parts = dict(parts)
        self.named_parts = list(self.parts.items())
        self.sources = [part.source for part in self.parts.values()]
        self.ends = np.cumsum([len(part) for part in self.parts.values()], dtype=np.int64)

    def __repr__(self) -> str:
        return f"mix({self.parts!r})"

    own_names = (SOURCE,)

    @property
    def traits(self) -> SourceTraits:
        return SourceTraits(value_fields=self.fields)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of all datasets, in the order in which they come up, and "__source__"."""
        names = dict.fromkeys(name for part in self.parts.values() for name in part.fields)
        return (*(name for name in names if name != SOURCE), SOURCE)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of a batch beside "__key__": after a `map()`, what it returns."""
        names = dict.fromkeys(name for part in self.parts.values() for name in _columns_of(part))
        return (*(name for name in names if name not in (SOURCE, "__key__")), SOURCE)

    @cached_property
    def manifest(self) -> Manifest:
        """All shards, one dataset's after the other's; a subset's have what is left of them."""
        return Manifest.joined("mix", [_manifest_of(*part) for part in self.parts.items()])

    @property
    def removed(self) -> _Ids:
        return joined_removed([*self.parts.values()], self.ends)

    def costs(self, hidden: int) -> NDArray[np.float64]:
        return np.concatenate([part.costs(hidden=hidden) for part in self.parts.values()])

    def locate(self, index: int) -> tuple[str, Dataset, int]:
        """The name and the dataset of a sample, and its index there."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        name, part = self.named_parts[number]
        return name, part, index - int(self.ends[number]) + len(part)

    def read(self, ids: _Ids, fields: tuple[str, ...] | None = None) -> Columns:
        loaded = self.load(LoadRequest(ids))
        names = self.fields if fields is None else fields
        missing = [None] * len(ids)
        return Columns(ids, loaded["__key__"], {name: loaded.get(name, missing) for name in names})

    def ranges(self, ids: _Ids, *, epoch: int, seed: int) -> Iterable[PoolRanges] | None:
        found = []
        for number, rows, start in rows_by_part(ids, self.ends):
            name, part = self.named_parts[number]
            own = mix(seed, key_of(name))
            found.append(part.ranges(ids[rows] - start, epoch=epoch, seed=own))
        return joined_ranges(found)

    def load(self, request: LoadRequest) -> dict[str, Sequence[Any]]:
        ids, out, stats = request.ids, request.out, request.stats
        places = list(rows_by_part(ids, self.ends))
        is_one = len(places) == 1
        # Seconds count once all datasets are read: until then a row before may have an error.
        kept = None if is_one or stats is None else Stages()
        pieces: list[tuple[NDArray[np.intp], Mapping[str, Any]]] = []
        for number, rows, start in places:
            name, part = self.named_parts[number]
            inner = LoadRequest(
                ids[rows] - start,
                epoch=request.epoch,
                seed=mix(request.seed, key_of(name)),
                out=out if is_one or not out else _buffers(out, len(rows)),
                stats=kept or stats,
                watch=self._watch_of(part, start, request.watch),
            )
            try:
                loaded = part._load(inner)
            except DataError as error:
                # The dataset knows its own indices.
                error.index = None if error.index is None else error.index + start
                raise
            below = loaded.get(SOURCE) if is_mixture(part) else None
            of = [name] * len(rows) if below is None else [f"{name}/{each}" for each in below]
            pieces.append((rows, {**loaded, SOURCE: of}))
        if kept is not None and stats is not None:
            stats.merge(kept)
        return self._merge_pieces(pieces, out or {}, len(ids))

    def _watch_of(self, part: Dataset, start: int, watch: DecodeWatch | None) -> DecodeWatch | None:
        if watch is None:
            return None
        places = [self.fields.index(name) for name in part.fields]
        return _PartWatch(watch, start, places)

    def _merge_pieces(
        self,
        pieces: Sequence[tuple[NDArray[np.intp], Mapping[str, Any]]],
        out: Mapping[str, NDArray[Any]],
        num_rows: int,
    ) -> dict[str, Sequence[Any]]:
        names: Sequence[str] = ("__key__", *self.columns)
        if not num_rows:
            names = [name for name in names if name in pieces[0][1]]
        merged: dict[str, Any] = {}
        for name in names:
            parts = [(rows, piece.get(name, [None] * len(rows))) for rows, piece in pieces]
            if name in out and len(pieces) > 1:
                for rows, column in parts:
                    out[name][rows] = column
                merged[name] = out[name]
            else:
                merged[name] = parts[0][1] if len(parts) == 1 else merge_columns(parts, num_rows)
        return merged


def is_mixture(dataset: Dataset) -> bool:
    """Whether the samples of a dataset are a mixture's, and name their own datasets."""
    return isinstance(dataset.source, MixSource)


class _PartWatch:
    """A watch of one dataset: names its samples and fields as the mixture does."""

    def __init__(self, watch: DecodeWatch, start: int, places: Sequence[int]) -> None:
        self._watch = watch
        self._start = start
        self._places = places

    def begin(self, sample: int, key: str, part: int, detail: str = "") -> None:
        number = sample if sample < 0 else sample + self._start
        self._watch.begin(number, key, part if part < 0 else self._places[part], detail)

    def end(self) -> None:
        self._watch.end()


def _buffers(out: Mapping[str, NDArray[Any]], num_rows: int) -> dict[str, NDArray[Any]]:
    return {n: np.empty((num_rows, *rows.shape[1:]), rows.dtype) for n, rows in out.items()}


def _manifest_of(name: str, part: Dataset) -> Manifest:
    sizes, whole = part.shard_sizes, part.manifest
    if len(sizes) != len(whole.sizes):  # a subset that jumps between shards
        return Manifest("mix", [Shard(name, len(part), 0)])
    num_bytes = np.where(sizes == whole.sizes, whole.shard_bytes, 0)
    return Manifest.of_columns("mix", whole.urls, sizes, num_bytes)


def _columns_of(part: Dataset) -> Sequence[str]:
    """The columns that a dataset loads; after a `map()` they are known from a sample only."""
    if isinstance(part.source, MixSource):
        return part.source.columns
    if not part.is_mapped:
        return (*part.fields, *part.mask_fields)
    for index in range(min(_NUM_TRIED, len(part))):
        try:
            return list(part.load(np.array([index], dtype=np.int64)))
        except DataError:
            if index + 1 == min(_NUM_TRIED, len(part)):
                raise
    return ()
