"""Segments as samples: a source over the source of their sounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, floor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Column, Columns, values_of
from shardwise.base.errors import DataError
from shardwise.dataset.decoding import copied
from shardwise.dataset.field import refuse_reserved
from shardwise.dataset.subset import subset_fingerprint, subset_shard_sizes
from shardwise.extensions.media.clips.clip import HeldRanges
from shardwise.extensions.media.clips.files import MediaFiles
from shardwise.extensions.media.files.coded_frames import byte_ranges, joined_ranges
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.sound import first_packets, packets_of
from shardwise.extensions.media.files.sound_window import (
    BLOCK_S,
    length_at,
    open_sound,
    read_window,
)
from shardwise.extensions.media.segments.table import SegmentTable, rows_in
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    Source,
    SourceTraits,
    ranges_of,
    traits_of,
    value_fields_of,
)
from shardwise.storage import PoolRanges

# Offsets and durations of manifests are rounded: so much may lie behind the sound, as silence.
_ROUNDED_S = 0.1


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment that is read and not decoded: its file with the ranges in memory, and seconds."""

    reader: HeldRanges
    index: MediaIndex
    offset: float
    duration: float


@dataclass(frozen=True)
class SegmentDecoder:
    """Decodes segments at a rate, and in a number of channels; None for the sound's own."""

    rate: int | None = None
    channels: int | None = None

    def __call__(self, segment: Segment) -> NDArray[np.float32]:
        """float32 `[channels, samples]`."""
        sound = open_sound(segment.reader, index=segment.index)
        rate = self.rate or sound.rate
        start, count = round(segment.offset * rate), max(1, round(segment.duration * rate))
        if start + count > length_at(sound, rate) + _ROUNDED_S * rate:
            raise DataError(
                f"the sound lasts {sound.num_samples / sound.rate:g} s, and the segment of "
                f"{segment.duration:g} s begins at {segment.offset:g} s"
            )
        return read_window(sound, start, count, rate=rate, channels=self.channels)


class SegmentSource:
    """Segments of the sounds of a source; satisfies `shardwise.sources.protocol.Source`.

    Args:
        source: the sounds.
        indices: int64 `[sounds]`, the ids of the samples in it; None for all.
        fields: of a segment, copied from its sample; the sound's is among them.
        field: the sound's.
        cuts: the field of JSON with the rows; None for samples that are rows.
        files: the sounds' bytes and indexes.
        table: which segments there are.
        resampled: whether they get another rate, for which more around them is read.
    """

    def __init__(
        self,
        source: Source,
        *,
        indices: NDArray[np.int64] | None,
        fields: tuple[str, ...],
        field: str,
        cuts: str | None,
        files: MediaFiles,
        table: SegmentTable,
        resampled: bool,
    ) -> None:
        refuse_reserved(fields, source)
        self.source = source
        self.table = table
        self._indices, self._files, self._field, self._cuts = indices, files, field, cuts
        self._around_s = BLOCK_S + 0.1 if resampled else 0.0
        self._beside = tuple(name for name in fields if name != field)
        self._named = tuple(name for name in table.names if name not in fields)
        made = [name for name in ("offset", "duration") if name not in fields]
        self.fields = (*fields, *made, *self._named)

    def __repr__(self) -> str:
        return f"SegmentSource({self.source!r}, {len(self.table.sounds)} segments)"

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The sounds' own."""
        return self.source.default_shuffle

    @cached_property
    def traits(self) -> SourceTraits:
        """Segments and what their rows say are values; what rides along is as it was."""
        inner = traits_of(self.source)
        layouts = {name: inner.layouts[name] for name in self._beside if name in inner.layouts}
        layouts |= dict.fromkeys(("offset", "duration"), ((), np.dtype(np.float64)))
        values = set(value_fields_of(self.source)).intersection(self._beside)
        return SourceTraits(
            value_fields={*values, self._field, "offset", "duration", *self._named},
            layouts=layouts,
            random_reads_are_requests=inner.random_reads_are_requests,
        )

    @cached_property
    def manifest(self) -> Manifest:
        """The sounds' shards, with the counts of their segments.

        The fingerprint is made of the sounds' and of all offsets and durations.
        """
        inner, indices, table = self.source.manifest, self._indices, self.table
        sizes = inner.sizes if indices is None else subset_shard_sizes(inner.sizes, indices)
        before = np.searchsorted(table.sounds, np.append(0, np.cumsum(sizes)), side="left")
        fingerprint = inner.fingerprint
        if indices is not None:
            fingerprint = subset_fingerprint(fingerprint, indices)
        digest = hashlib.sha256(f"{self._field!r} {self._cuts!r}\n".encode())
        for column in (table.sounds, table.offsets, table.durations):
            digest.update(np.ascontiguousarray(column).data)
        return Manifest.of_columns(
            f"segments {fingerprint} {digest.hexdigest()[:16]}",
            inner.urls[: len(sizes)],
            np.diff(before).astype(np.int64),
            inner.shard_bytes[: len(sizes)],
        )

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read segments: one range each, all remote ones in flight at once.

        Raises:
            DataError: a shard is damaged, missing, or not the one that was indexed.
            StorageError: bytes could not be read.
        """
        names = self.fields if fields is None else fields
        ids, table = np.asarray(ids, np.int64), self.table
        sounds = table.sounds[ids]
        samples = sounds if self._indices is None else self._indices[sounds]
        unique, inverse = np.unique(samples, return_inverse=True)
        cut_field = None if self._cuts is None else self._cuts.split(".")[0]
        wants_rows = not set(names).isdisjoint(self._named)
        read = self._read_beside(names)
        stored = self.source.read(unique, read)
        values = {name: values_of(stored.fields[name]) for name in read}
        shared = traits_of(self.source).holds_objects
        columns: dict[str, Column] = {}
        for name in self._beside:
            if name in names:
                picked = [values[name][row] for row in inverse.tolist()]
                columns[name] = _as_stored(
                    stored.fields[name], inverse, list(map(copied, picked)) if shared else picked
                )
        columns["offset"] = columns.get("offset", table.offsets[ids])
        columns["duration"] = columns.get("duration", table.durations[ids])
        if wants_rows:
            assert cut_field is not None
            assert self._cuts is not None
            parsed = [rows_in(value, self._cuts) for value in values[cut_field]]
            rows = [parsed[n][row] for n, row in zip(inverse, table.rows[ids], strict=True)]
            columns |= {name: [row.get(name) for row in rows] for name in self._named}
        num_bytes = stored.num_bytes
        if self._field in names:
            columns[self._field], num_read = self._read_segments(ids, samples)
            num_bytes += num_read
        marks = (table.offsets if cut_field is None else table.rows)[ids].tolist()
        keys = [
            f"{stored.keys[row]}:{mark:g}"
            for row, mark in zip(inverse.tolist(), marks, strict=True)
        ]
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_: int
    ) -> Iterable[PoolRanges] | None:
        """What `read` fetches; see `TellsRanges`."""
        names = self.fields if fields is None else fields
        samples = self.table.sounds[ids]
        samples = samples if self._indices is None else self._indices[samples]
        beside = ranges_of(self.source, np.unique(samples), self._read_beside(names))
        if beside is None or self._field not in names:
            return beside
        return [*beside, *self._files.reads(self._needed(ids, samples))]

    def _read_beside(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The fields that are read of the samples themselves."""
        cut_field = None if self._cuts is None else self._cuts.split(".")[0]
        wants_rows = not set(names).isdisjoint(self._named)
        return tuple(n for n in self._beside if n in names or (wants_rows and n == cut_field))

    def _read_segments(
        self, ids: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> tuple[list[Segment], int]:
        """The bytes of segments; those of one sound share what they have in common."""
        spans = self._spans(ids)
        indexes = [self._files.index(sample) for sample in samples.tolist()]
        read = self._files.read(self._needed(ids, samples))
        num_bytes = sum(len(data) for parts in read.values() for _, data in parts)
        segments = []
        for sample, index, span in zip(samples.tolist(), indexes, spans, strict=True):
            fetch = partial(self._fetched, sample)
            reader = HeldRanges(index.num_bytes, read.get(sample, []), fetch)
            segments.append(Segment(reader, index, *span))
        return segments, num_bytes

    def _spans(self, ids: NDArray[np.int64]) -> list[tuple[float, float]]:
        offsets, durations = self.table.offsets[ids], self.table.durations[ids]
        return list(zip(offsets.tolist(), durations.tolist(), strict=True))

    def _needed(
        self, ids: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> dict[int, list[tuple[int, int]]]:
        """By sample the ranges that its segments are made of."""
        needed: dict[int, list[tuple[int, int]]] = {}
        for sample, (offset, duration) in zip(samples.tolist(), self._spans(ids), strict=True):
            low, high = offset - self._around_s, offset + duration + self._around_s
            needed.setdefault(sample, []).extend(_ranges(self._files.index(sample), low, high))
        return {sample: joined_ranges(ranges) for sample, ranges in needed.items()}

    def _fetched(self, sample: int, start: int, stop: int) -> memoryview:
        ((begin, data),) = self._files.read({sample: [(start, stop)]})[sample]
        return data[start - begin : stop - begin]


def _ranges(index: MediaIndex, low: float, high: float) -> list[tuple[int, int]]:
    """The ranges of a file that decoding some seconds reads."""
    track = index.first("audio")
    if not track.is_ranged:
        return [(0, index.num_bytes)]
    begin, _, last = packets_of(track, floor(low * track.rate) - 1, ceil(high * track.rate) + 1)
    packets = np.union1d(np.arange(first_packets(track)), np.arange(begin, last))
    return byte_ranges(track, packets)


def _as_stored(column: Column, rows: NDArray[np.intp], picked: list[Any]) -> Column:
    return column[rows] if isinstance(column, np.ndarray) else picked
