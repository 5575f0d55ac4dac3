"""Samples of a source by id: read, decoded and transformed, as columns of a batch.

The engine's side of a dataset (`shardwise.sources.samples.Samples`), and nothing that a user calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import Layout, num_missing
from shardwise.base.counters import Stages, StageSeconds
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.dataset.decoding import copied, decode_columns, decode_rows
from shardwise.dataset.field import (
    Field,
    in_place,
    is_plain_function,
    mask_in_place,
    refuse_reserved,
)
from shardwise.dataset.keyed_random import SampleKeys
from shardwise.dataset.raw_rows import RawRows
from shardwise.dataset.subset import subset_fingerprint, subset_shard_sizes
from shardwise.dataset.transforms import Transforms, columns_of
from shardwise.plan import Sampler, WindowShape
from shardwise.plan.arguments import whole
from shardwise.sources.manifest import Manifest, checked_ids
from shardwise.sources.protocol import (
    ReadsEpochs,
    Source,
    SourceTraits,
    TellsRanges,
    costs_of,
    traits_of,
    url_in,
)
from shardwise.sources.samples import DecodeWatch, LoadCost, LoadRequest
from shardwise.storage import PoolRanges


def rows_by_part(
    ids: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp], int]]:
    """Yield number, rows and first id of each part that some ids are of; no ids: the first."""
    # side="right" skips empty parts.
    owners = np.searchsorted(ends, ids, side="right")
    for number in np.unique(owners).tolist() or [0]:
        yield number, np.flatnonzero(owners == number), int(ends[number - 1]) if number else 0


class LoadedSamples:
    """The samples of a source, transformed; the base of `Dataset`."""

    def __init__(self, source: Source, transforms: Transforms | None = None) -> None:
        self._source = source
        self._transforms = transforms or Transforms()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what it is; cached properties are computed again."""
        return {"_source": self._source, "_transforms": self._transforms}

    def __len__(self) -> int:
        indices = self._transforms.indices
        return self._source.manifest.num_samples if indices is None else len(indices)

    @property
    def source(self) -> Source:
        """The source that holds the samples."""
        return self._source

    @property
    def sampler(self) -> Sampler | None:
        """The order that it brings, as a mixture does; None where a loader chooses one."""
        return None

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The meaning of `shuffle=True` here: "full" or "window"."""
        return self._source.default_shuffle

    @cached_property
    def fingerprint(self) -> str:
        """Which samples these are, in which order: 16 hex digits, whatever is decoded."""
        indices = self._transforms.indices
        whole = self.manifest.fingerprint
        return whole if indices is None else subset_fingerprint(whole, indices)

    @cached_property
    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples per shard: int64 `[shards]`; a subset that jumps between shards is one."""
        indices = self._transforms.indices
        sizes = self.manifest.sizes
        return sizes if indices is None else subset_shard_sizes(sizes, indices)

    def costs(self, *, hidden: int) -> NDArray[np.float64]:
        """Cost of each pack of `sw.pack` for a model of that width: float64 `[samples]`.

        6 x hidden x tokens for linear layers + sum of squares of documents' lengths for attention.
        """
        indices = self._transforms.indices
        costs = costs_of(self._source, whole("hidden", hidden, least=1, most=2**31))
        return costs if indices is None else costs[indices]

    @property
    def padding(self) -> Mapping[str, Any]:
        """The padding of fields, whatever `ragged=` is, see `SourceTraits`."""
        return self._traits.padding

    @property
    def whole_fields(self) -> Collection[str]:
        """The fields whose dicts and tuples are values: those that shards have, as of JSON."""
        if self._traits.holds_objects:
            return self._transforms.decoders
        return (*self.fields, "__media__")

    @property
    def window_shape(self) -> WindowShape | None:
        """The path of a window shuffle through the shards; None for the default one."""
        return self._traits.window_shape

    @property
    def mask_fields(self) -> tuple[str, ...]:
        """The fields of masks that decoders make beside their own, such as "mp4.mask"."""
        return tuple(field.mask_name for field in self._fields if field.has_mask)

    @property
    def manifest(self) -> Manifest:
        """The source's shards, whatever subset of their samples this is."""
        return self._source.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are read: the selected ones, else all that any sample has."""
        selected = self._transforms.selected
        return self._source.fields if selected is None else selected

    @property
    def transforms(self) -> Transforms:
        """The transforms of the source's samples."""
        return self._transforms

    def url_of(self, index: int) -> str:
        """The url of the shard that holds sample `index`."""
        indices = self._transforms.indices
        return self._url_in_source(index if indices is None else int(indices[index]))

    def describe(self, index: int) -> str:
        """The location of sample `index`, for messages; reads no sample."""
        return f"sample {index} of {shown(self.url_of(index))}"

    def layout(self) -> dict[str, Layout]:
        """Shape and dtype of the fields that `load` can decode straight into the rows of `out`."""
        if self.is_mapped or self._traits.holds_objects:
            return {}
        layouts = {field.name: in_place(field) for field in self._fields}
        layouts |= {field.mask_name: mask_in_place(field) for field in self._fields}
        return {name: layout for name, layout in layouts.items() if layout is not None}

    @cached_property
    def cost(self) -> LoadCost:
        """What loading a sample costs: threads and chunk sizes follow from it."""
        traits, row_bytes = self._traits, self._row_bytes()
        runs_python = self.is_mapped or any(map(is_plain_function, self._decoders))
        return LoadCost(
            row_bytes=row_bytes,
            decodes_rows=self._decodes_rows,
            runs_python=runs_python and not traits.holds_objects,
            one_thread_suffices=traits.counts_waits and row_bytes is not None,
            random_reads_are_requests=traits.random_reads_are_requests,
            batch_is_one_request=traits.read_is_one_request,
        )

    @property
    def is_mapped(self) -> bool:
        """Whether a `map()` makes the samples, whose fields are known from samples only."""
        return bool(self._transforms.maps)

    def load(
        self,
        ids: NDArray[np.int64],
        *,
        epoch: int = 0,
        seed: int = 0,
        out: Mapping[str, NDArray[Any]] | None = None,
        stats: Stages | None = None,
        watch: DecodeWatch | None = None,
    ) -> dict[str, Sequence[Any]]:
        """Read, decode and transform samples; see `Samples.load`. Several threads may call it.

        Returns:
            "__key__": list of str, and for each field an array `[rows, ...]` or a list of values
            (None where a sample lacks the field); "__key__" alone with no rows after a `map()`.

        Raises:
            DataError: of the first sample that is damaged, lacks a field that was requested, or
                on which a decoder or transform raised, if "read" was counted.
            StorageError: bytes could not be read.
        """
        ids = checked_ids(ids, len(self))
        return self._load(LoadRequest(ids, epoch, seed, out, stats, watch))

    def ranges(
        self, ids: NDArray[np.int64], *, epoch: int = 0, seed: int = 0
    ) -> Iterable[PoolRanges] | None:
        """The ranges of remote files that `load` reads, if the source knows; see `TellsRanges`."""
        indices = self._transforms.indices
        source_ids = ids if indices is None else indices[ids]
        selected = self._transforms.selected
        own = self._tells_ranges
        return None if own is None else own.ranges(source_ids, selected, epoch=epoch, seed=seed)

    # Inner parts.

    def _load(self, request: LoadRequest) -> dict[str, Sequence[Any]]:
        started, maps = time.perf_counter(), self._transforms.maps
        rows = self._read(request.ids, SampleKeys(request.seed, request.epoch))
        rows.watch = request.watch
        read = time.perf_counter()
        stats = request.stats
        if stats is not None:
            stats.add("read", read - started, rows.columns.num_bytes)
        transform_s = 0.0
        with StageSeconds() as apart:
            if maps:
                # Row by row, so that the first error is that of the first row.
                samples = []
                for row, sample in enumerate(decode_rows(rows, self._fields)):
                    decoded = time.perf_counter()
                    # Decoding inside a function is part of "transform".
                    apart.is_paused = True
                    samples.append(self._map_sample(rows, row, sample))
                    apart.is_paused = False
                    transform_s += time.perf_counter() - decoded
                decoded = time.perf_counter()
                columns: dict[str, Any] = dict(columns_of(rows, samples))
                transform_s += time.perf_counter() - decoded
            else:
                columns = decode_columns(rows, self._fields, request.out or {})
        if stats is not None:
            apart_s = sum(apart.seconds.values())
            stats.add("decode", time.perf_counter() - read - transform_s - apart_s)
            for stage, seconds in apart.seconds.items():
                stats.add(stage, seconds)
            if maps:
                stats.add("transform", transform_s)
            for name, column in rows.columns.fields.items():
                if count := num_missing(column):
                    stats.missing[name] = stats.missing.get(name, 0) + count
        return columns

    @cached_property
    def _traits(self) -> SourceTraits:
        return traits_of(self._source)

    @cached_property
    def _reads_epochs(self) -> ReadsEpochs | None:
        return having(self._source, ReadsEpochs)

    @cached_property
    def _tells_ranges(self) -> TellsRanges | None:
        return having(self._source, TellsRanges)

    def _row_bytes(self) -> float | None:
        """Mean stored bytes of a sample, if its fields stay bytes or are decoded by columns."""
        columnar = all(hasattr(decoder, "decode_column") for decoder in self._decoders)
        if self.is_mapped or self._traits.holds_objects or not columnar:
            return None
        manifest = self.manifest
        num_bytes = manifest.num_bytes
        # 0: the source does not know its samples' sizes.
        return num_bytes / max(1, manifest.num_samples) if num_bytes else None

    @property
    def _decodes_rows(self) -> bool:
        """Whether decoders write rows one by one, of samples that any process may read alone."""
        # Threads share pieces, and blocks of remote shards; processes would fetch them again.
        traits = self._traits
        shares_reads = traits.reads_pieces or traits.random_reads_are_requests
        return not (self.is_mapped or traits.holds_objects or shares_reads) and any(
            in_place(field) is not None
            and field.cast is None
            and hasattr(field.decoder, "decode_into")
            and not hasattr(field.decoder, "decode_column")
            for field in self._fields
        )

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        fields = self._transforms.fields(self.fields, self._traits.layouts)
        refuse_reserved([field.name for field in fields], self._source)
        return fields

    @property
    def _decoders(self) -> list[Callable[[Any], Any]]:
        """The decoders that are called: numbers that only change their dtype need none."""
        return [
            field.decoder
            for field in self._fields
            if field.decoder is not None and field.cast is None
        ]

    def _url_in_source(self, source_id: int, field: str | None = None) -> str:
        return url_in(self._source, source_id, field)

    def _read(self, ids: NDArray[np.int64], keys: SampleKeys | None = None) -> RawRows:
        """Read samples by their ids in this dataset; by default as epoch 0 of seed 0 has them."""
        keys = keys or SampleKeys()
        indices = self._transforms.indices
        source_ids = ids if indices is None else indices[ids]
        try:
            fields = self._transforms.selected
            by_epoch = self._reads_epochs
            columns = (
                self._source.read(source_ids, fields)
                if by_epoch is None
                else by_epoch.read_epoch(source_ids, fields, epoch=keys.epoch, seed=keys.seed)
            )
        except DataError as error:
            # The source knows its own ids: name the sample of this dataset.
            if indices is not None and error.index is not None:
                rows = np.flatnonzero(source_ids == error.index)
                error.index = int(ids[rows[0]]) if len(rows) else None
            raise
        if self._traits.holds_objects:
            # A program that writes into a sample must not change the dataset for the next epoch,
            # or for this worker alone.
            own = columns.fields if self.is_mapped else self._transforms.decoders
            copies = {name: [copied(value) for value in columns.fields[name]] for name in own}
            columns = replace(columns, fields={**columns.fields, **copies})
        return RawRows(ids, columns, self._url_in_source, keys)

    def _map_sample(self, rows: RawRows, row: int, sample: dict[str, Any]) -> dict[str, Any]:
        for function in self._transforms.maps:
            sample = function(sample, rows, row)
        return sample
