"""The source: the one protocol between formats and the dataset, and a source's traits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import Columns, Layout
from shardwise.plan import WindowShape
from shardwise.sources.manifest import Manifest
from shardwise.storage import PoolRanges


@runtime_checkable
class Source(Protocol):
    """Samples in storage, by id.

    Columns hold stored bytes, as a `BytesColumn`, unless the source's `traits`, a `SourceTraits`,
    say otherwise. Its optional abilities are the protocols below: a source has one by having its
    members.

    A source opens files lazily, once per process (`shardwise.sources.PerProcess` does that), and
    pickles without them; `read` may be called by several threads at once and after a fork. The
    conformance kit `shardwise.testing.check_source` holds a new one to this.
    """

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The meaning of `shuffle=True` for this source: "full" or "window"."""

    @property
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts; read at the first use."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields that any sample has, in storage order."""

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples by ids, int64 `[rows]` in [0, N), in any order, with repeats.

        `fields` are some of `self.fields`, None for all. A field that a sample lacks is None.

        Raises:
            DataError: a shard is damaged, missing or not the one indexed.
            StorageError: bytes could not be read.
        """


@dataclass(frozen=True)
class SourceTraits:
    """The fields of a source beside stored bytes, and the cost of reading it.

    Attributes:
        value_fields: fields that hold values, which decoders get as they are. Their columns are
            arrays `[rows, ...]`, or sequences with None where a sample lacks the field.
        layouts: name -> (shape, dtype) of a row: value fields whose columns are arrays wherever no
            sample lacks the field. They are copied into a batch with no work per row.
        parts: fields beside `fields` that are read only where they are named, such as
            "image.bytes" of a field "image": `select` and `decode` take them.
        padding: what arrays of a field are padded with where they differ in length, whatever a
            loader's `ragged=` is: a number, or "edge" for the last value again.
        holds_objects: all fields are Python objects, which are read one by one.
        random_reads_are_requests: reading one sample out of order costs a remote request.
        read_is_one_request: all samples of one `read` are one remote request.
        counts_waits: it reads by `shardwise.storage`, which counts reads that had to wait, and else
            holds the GIL.
        reads_pieces: threads share what is read with a row, such as a row group.
        window_shape: lanes and window of a window shuffle, by the manifest alone, for a source that
            reads large pieces; None for the default.
    """

    value_fields: Collection[str] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    padding: Mapping[str, Any] = field(default_factory=dict)
    holds_objects: bool = False
    random_reads_are_requests: bool = False
    read_is_one_request: bool = False
    counts_waits: bool = False
    reads_pieces: bool = False
    window_shape: WindowShape | None = None


def common_costs(every: Sequence[SourceTraits]) -> SourceTraits:
    """The traits shared by samples of all the sources, except for their fields."""
    return SourceTraits(
        holds_objects=all(traits.holds_objects for traits in every),
        random_reads_are_requests=any(traits.random_reads_are_requests for traits in every),
        reads_pieces=any(traits.reads_pieces for traits in every),
        counts_waits=all(traits.counts_waits for traits in every),
    )


def common_entries(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all mappings, one or more, have in common."""
    first, *others = every
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}


class HasTraits(Protocol):
    """Holds more than stored bytes, or costs more to read than they do."""

    @property
    def traits(self) -> SourceTraits:
        """Its fields beside stored bytes, and the cost of reading it."""


class Undecodes(Protocol):
    """Has values that are decoded already, and the stored bytes, too."""

    def undecoded(self, names: Sequence[str]) -> Source:
        """Return a source of the same samples with these fields as stored, for decoders."""


class ReadsSample(Protocol):
    """Reads one sample in less time than `read` takes for one."""

    def read_sample(
        self, sample_id: int, fields: tuple[str, ...] | None
    ) -> tuple[str, list[Any]] | None:
        """Return key and values; None if something is wrong, which `read` then raises."""


class ReadsEpochs(Protocol):
    """Has samples that differ between epochs, such as blocks of shuffled documents: a base, too."""

    def read_epoch(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None, *, epoch: int, seed: int
    ) -> Columns:
        """Read samples of an epoch."""

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples of epoch 0 and seed 0; see `Source`."""
        return self.read_epoch(ids, fields, epoch=0, seed=0)


class ReadsRuns(Protocol):
    """Reads in storage order in less time and memory than `read` takes."""

    def read_run(
        self, start: int, stop: int, fields: tuple[str, ...] | None
    ) -> Iterator[Columns] | None:
        """Yield the samples `[start, stop)` in order; None where it can't."""


class TellsRanges(Protocol):
    """Knows which ranges of remote files it will read, so that they are fetched before."""

    def ranges(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int = 0,
        seed: int = 0,
    ) -> Iterable[PoolRanges] | None:
        """Return the ranges that a read of the samples fetches; None where it never fetches any."""


class KeepsFiles(Protocol):
    """Has a directory for data that is computed from its samples."""

    @property
    def directory(self) -> str | None:
        """The directory, or None."""


class HasVersion(Protocol):
    """Knows when a shard is rewritten."""

    def version(self) -> str:
        """Return a text that changes then."""


class HasMediaFiles(Protocol):
    """Has the videos or sounds of a field with their indexes."""

    def media_files(self, field: str) -> Any:
        """Return them, as `shardwise.extensions.media.clips.files.MediaFiles`."""


class HasOwners(Protocol):
    """Has samples of other sources, or parts of them: a concatenation, clips, segments."""

    def owner_of(self, sample_id: int, field: str | None) -> tuple[Source, int]:
        """Return that source, of a field if one is named, and the id in it."""


class HasOwnNames(Protocol):
    """Has fields whose names have a meaning in batches, mixtures and clips, on purpose."""

    own_names: Collection[str]


class HasParts(Protocol):
    """Is made of other sources."""

    sources: Sequence[Any]


class HasContentKey(Protocol):
    """Has samples that its fingerprint does not identify alone."""

    content_key: tuple[Any, ...]


class HoldsDataset(Protocol):
    """Reads its samples from a dataset."""

    dataset: Any


class HasCosts(Protocol):
    """Knows what its samples cost a model: packs."""

    def costs(self, hidden: int) -> NDArray[np.float64]:
        """Return the cost of each sample."""


def costs_of(source: Source, hidden: int) -> NDArray[np.float64]:
    """Return the cost of each sample; raises ValueError if they are not packs."""
    own = having(source, HasCosts)
    if own is None:
        raise ValueError(
            f"{source!r:.80} has no packs of sw.pack: give a column or an array of costs"
        )
    return own.costs(hidden)


def traits_of(source: Source) -> SourceTraits:
    """Return the `traits` of a source, or the default ones."""
    own = having(source, HasTraits)
    return (None if own is None else own.traits) or SourceTraits()


def owner_of(source: Source, sample_id: int, field: str | None = None) -> tuple[Source, int]:
    """Return the source that holds a sample (or its field), or its whole, and the id there."""
    while (own := having(source, HasOwners)) is not None:
        source, sample_id = own.owner_of(sample_id, field)
    return source, sample_id


def url_in(source: Source, sample_id: int, field: str | None = None) -> str:
    """Return the url of the shard that holds a sample, or its field."""
    source, sample_id = owner_of(source, sample_id, field)
    shard, _ = source.manifest.locate(np.array([sample_id], dtype=np.int64))
    return source.manifest.urls[int(shard[0])]


def directory_of(source: Source) -> str | None:
    """Return the directory for data computed from a source's samples; None if it has none."""
    own = having(source, KeepsFiles)
    return None if own is None else own.directory


def own_names_of(source: object) -> Collection[str]:
    """Return the names of batches that a source, or a function of a `map()`, may give fields."""
    own = having(source, HasOwnNames)
    return () if own is None else own.own_names


def parts_of(source: object) -> Sequence[Any]:
    """Return the sources that a source is made of; () for one that reads storage."""
    own = having(source, HasParts)
    return () if own is None else own.sources


def content_key_of(source: object) -> tuple[Any, ...]:
    """Return what identifies a source's samples beside the fingerprint; () for nothing else."""
    own = having(source, HasContentKey)
    keys = () if own is None else own.content_key
    return (*keys, *(key for key in map(content_key_of, parts_of(source)) if key))


def read_rows(
    source: Source,
    ids: NDArray[np.int64],
    fields: tuple[str, ...] | None,
    *,
    epoch: int = 0,
    seed: int = 0,
) -> Columns:
    """Read samples of an epoch: by `read_epoch` where the source has it, else by `read`."""
    own = having(source, ReadsEpochs)
    if own is None:
        return source.read(ids, fields)
    return own.read_epoch(ids, fields, epoch=epoch, seed=seed)


def ranges_of(
    source: Source,
    ids: NDArray[np.int64],
    fields: tuple[str, ...] | None,
    *,
    epoch: int = 0,
    seed: int = 0,
) -> Iterable[PoolRanges] | None:
    """Return the ranges that a read of samples fetches, if the source knows them."""
    own = having(source, TellsRanges)
    return None if own is None else own.ranges(ids, fields, epoch=epoch, seed=seed)


def joined_ranges(every: Iterable[Iterable[PoolRanges] | None]) -> list[PoolRanges] | None:
    """The ranges of several parts; None if none of them ever reads any."""
    parts = list(every)
    known = [each for part in parts if part is not None for each in part]
    return None if all(part is None for part in parts) else known


def value_fields_of(source: Source) -> Collection[str]:
    """The fields of a source whose columns are values, not stored bytes."""
    traits = traits_of(source)
    return source.fields if traits.holds_objects else traits.value_fields
