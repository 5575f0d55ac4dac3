"""Segments as samples: a source over the source of their sounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns, values_of
from shardwise.base.errors import DataError
from shardwise.dataset.field import refuse_reserved
from shardwise.extensions.media.clips.files import (
    HeldRanges,
    MediaFiles,
    Part,
    hold_ranges,
    ranges_by_sample,
)
from shardwise.extensions.media.clips.owners import Owners
from shardwise.extensions.media.files.coded_frames import ranges_to_read
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.sound import packets_of
from shardwise.extensions.media.files.sound_window import (
    BLOCK_S,
    length_at,
    open_sound,
    read_window,
)
from shardwise.extensions.media.segments.table import SegmentTable, rows_in
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import Source, SourceTraits, joined_ranges
from shardwise.storage import PoolRanges

# Offsets and durations of manifests are rounded: so much may lie after the sound, as silence.
_ROUNDED_S = 0.1
# Fields that each segment has, as floats, also where rows leave out one or have texts.
_SECONDS = ("offset", "duration")


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
        sound = open_sound(segment.reader, index=segment.index, near=segment.offset)
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

    `cuts` names the rows in a field of JSON, `cut_field`; None for samples that are rows.
    `resampled` sounds are read with more around each segment.
    """

    def __init__(
        self,
        source: Source,
        *,
        indices: NDArray[np.int64] | None,
        fields: tuple[str, ...],
        field: str,
        cuts: str | None,
        cut_field: str | None,
        files: MediaFiles,
        table: SegmentTable,
        resampled: bool,
    ) -> None:
        refuse_reserved(fields, source)
        self.source = source
        self.table = table
        self._files, self._field = files, field
        self._cuts, self._cut_field = cuts, cut_field
        self._around_s = BLOCK_S + 0.1 if resampled else 0.0
        copied = tuple(name for name in fields if name not in (field, *_SECONDS))
        self._owners = Owners(source, indices, copied)
        self._named = tuple(name for name in table.names if name not in fields)
        self.fields = (*dict.fromkeys((*fields, *_SECONDS)), *self._named)

    def __repr__(self) -> str:
        return f"SegmentSource({self.source!r}, {len(self.table.sounds)} segments)"

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        return self.source.default_shuffle

    @cached_property
    def traits(self) -> SourceTraits:
        seconds = dict.fromkeys(_SECONDS, ((), np.dtype(np.float64)))
        return self._owners.traits((self._field, *seconds, *self._named), seconds)

    @cached_property
    def manifest(self) -> Manifest:
        """The sounds' shards, with the counts of their segments.

        The fingerprint is made of the sounds' and of all offsets and durations.
        """
        table = self.table
        digest = hashlib.sha256(f"{self._field!r} {self._cuts!r}\n".encode())
        for column in (table.sounds, table.offsets, table.durations):
            digest.update(np.ascontiguousarray(column).data)
        return self._owners.manifest("segments", digest.hexdigest(), table.segments_by)

    def owner_of(self, segment: int, *_: object) -> tuple[Source, int]:
        return self.source, int(self._owners.ids(self.table.sounds[[segment]])[0])

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        names = self.fields if fields is None else fields
        ids, table = np.asarray(ids, np.int64), self.table
        samples = self._owners.ids(table.sounds[ids])
        cut_field, wants_rows = self._cut_field, not set(names).isdisjoint(self._named)
        also = cut_field if wants_rows else None
        stored, inverse, columns = self._owners.read(table.sounds[ids], names, also)
        columns["offset"], columns["duration"] = table.offsets[ids], table.durations[ids]
        if wants_rows:
            assert cut_field is not None
            assert self._cuts is not None
            parsed = [rows_in(value, self._cuts) for value in values_of(stored.fields[cut_field])]
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
        names = self.fields if fields is None else fields
        samples = self._owners.ids(self.table.sounds[ids])
        cut_field = None if set(names).isdisjoint(self._named) else self._cut_field
        parts = [self._owners.ranges(samples, names, cut_field)]
        if parts[0] is not None and self._field in names:
            known = [self._files.has_index(sample) for sample in samples.tolist()]
            wanted = ranges_by_sample(self._list_parts(ids[known], samples[known]))
            parts.append(self._files.ranges(wanted))
        return joined_ranges(parts)

    def _list_parts(self, ids: NDArray[np.int64], samples: NDArray[np.int64]) -> list[Part]:
        wanted: list[Part] = []
        offsets, durations = self.table.offsets[ids].tolist(), self.table.durations[ids].tolist()
        for sample, offset, duration in zip(samples.tolist(), offsets, durations, strict=True):
            low, high = offset - self._around_s, offset + duration + self._around_s
            index = self._files.index(sample)
            wanted.append((sample, index, _ranges(index, low, high)))
        return wanted

    def _read_segments(
        self, ids: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> tuple[list[Segment], int]:
        wanted = self._list_parts(ids, samples)
        spans = zip(self.table.offsets[ids].tolist(), self.table.durations[ids].tolist(),
                    strict=True)  # fmt: skip
        held, num_bytes = hold_ranges(self._files, wanted)
        return [
            Segment(reader, index, *span)
            for reader, (_, index, _), span in zip(held, wanted, spans, strict=True)
        ], num_bytes


def _ranges(index: MediaIndex, low: float, high: float) -> list[tuple[int, int]]:
    """The ranges of a file that decoding some seconds reads."""
    track = index.first("audio")
    if not track.is_ranged:
        return [(0, index.num_bytes)]
    begin, _, last = packets_of(track, floor(low * track.rate) - 1, ceil(high * track.rate) + 1)
    return ranges_to_read([(track, np.arange(begin, last))])
