"""Clips as samples: a source over the source of their videos."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, Columns, mask_of, values_of
from shardwise.dataset.decoding import copied
from shardwise.dataset.field import refuse_reserved
from shardwise.dataset.subset import subset_fingerprint, subset_shard_sizes
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.clip import Clip, Clips, HeldRanges
from shardwise.extensions.media.clips.files import MediaFiles
from shardwise.extensions.media.clips.options import ClipOptions
from shardwise.extensions.media.clips.table import cut_rows
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.extensions.media.files.coded_frames import joined_ranges
from shardwise.extensions.media.files.timeline import Span
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    ReadsEpochs,
    Source,
    SourceTraits,
    ranges_of,
    traits_of,
    value_fields_of,
)
from shardwise.storage import PoolRanges

MEDIA = "__media__"
# Videos that are looked at for the form of the silence of others.
_LOOKED_AT = 64


@dataclass(frozen=True)
class ClipCounts:
    """What became of the videos.

    Attributes:
        num_videos: videos, or cuts of them, that have clips.
        num_short: videos or cuts that are too short, and were dropped.
        num_bad: videos that can't be used, and were dropped.
    """

    num_videos: int
    num_short: int
    num_bad: int


class ClipSource(ReadsEpochs):
    """Clips of the videos of a source; satisfies `shardwise.sources.protocol.Source`.

    The table of clips, 24 bytes a video, travels with the pickled source.

    Args:
        source: the videos.
        indices: int64 `[videos]`, the ids of the samples in it; None for all.
        fields: of a clip, copied from its sample, beside those of videos.
        files: the videos' bytes and indexes, by field of `options.fields`.
        options: see there.
        table: which clips each video has.
        identity: of the videos' indexes.
    """

    def __init__(
        self,
        source: Source,
        *,
        indices: NDArray[np.int64] | None,
        fields: tuple[str, ...],
        files: Mapping[str, MediaFiles],
        options: ClipOptions,
        table: ClipTable,
        identity: str,
    ) -> None:
        refuse_reserved((*options.fields, *fields), source)
        self.source = source
        self.options = options
        self.table = table
        self.counts = ClipCounts(len(table.videos), table.num_short, table.num_bad)
        self._indices = indices
        self._files = files
        self._identity = identity
        self._beside = fields
        sound = f"{options.field}.audio"
        made = [mask_of(name) for name in options.fields if options.short == "mask"]
        made += [sound, mask_of(sound)] if options.audio else []
        self._made = (*options.fields, *made, MEDIA)
        self.fields = (*fields, *self._made)

    def __repr__(self) -> str:
        return f"ClipSource({self.source!r}, {self.table.num_clips} clips)"

    own_names = (MEDIA,)

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The videos' own."""
        return self.source.default_shuffle

    @cached_property
    def traits(self) -> SourceTraits:
        """Clips are values; what rides along is as it was."""
        inner = traits_of(self.source)
        layouts = {name: inner.layouts[name] for name in self._beside if name in inner.layouts}
        if self.options.short == "mask":
            group = () if self.options.per_sample is None else (self.options.per_sample,)
            row = ((*group, self.options.frames), np.dtype(np.bool_))
            layouts |= {mask_of(name): row for name in self.options.fields}
        values = set(value_fields_of(self.source)).intersection(self._beside)
        return SourceTraits(
            value_fields={*values, *self._made},
            layouts=layouts,
            random_reads_are_requests=inner.random_reads_are_requests,
        )

    @cached_property
    def manifest(self) -> Manifest:
        """The videos' shards, with the counts of their clips.

        The fingerprint is made of the videos', of their indexes and of the options.
        """
        inner, indices = self.source.manifest, self._indices
        sizes = inner.sizes if indices is None else subset_shard_sizes(inner.sizes, indices)
        num_shards = len(sizes)
        counts = self.table.clips_by(np.cumsum(sizes))
        fingerprint = inner.fingerprint
        if indices is not None:
            fingerprint = subset_fingerprint(fingerprint, indices)
        digest = hashlib.sha256(f"{self.options.described} {self._identity}\n".encode())
        for name in ("videos", "firsts", "stops", "counts"):
            digest.update(np.ascontiguousarray(getattr(self.table, name)).data)
        return Manifest.of_columns(
            f"clips {fingerprint} {digest.hexdigest()[:16]}",
            inner.urls[:num_shards],
            counts,
            inner.shard_bytes[:num_shards],
        )

    def url_of(self, clip: int) -> str:
        """The shard of a clip's video."""
        spans, _ = self.table.locate(np.array([clip], np.int64))
        shard, _ = self.source.manifest.locate(self._source_ids(self.table.videos[spans]))
        return self.source.manifest.urls[int(shard[0])]

    def read_epoch(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Columns:
        """Read clips: one range each, all remote ones in flight at once.

        Raises:
            DataError: a shard is damaged, missing, or not the one that was indexed.
            StorageError: bytes could not be read.
        """
        names = self.fields if fields is None else fields
        ids = np.asarray(ids, np.int64)
        spans, _ = self.table.locate(ids)
        samples = self._source_ids(self.table.videos[spans])
        unique, inverse = np.unique(samples, return_inverse=True)
        cut_field = self.options.cuts.split(".")[0] if self.options.cuts else None
        read = self._read_beside(names)
        stored = self.source.read(unique, read)
        columns: dict[str, Any] = {
            name: self._repeated(stored.fields[name], inverse) for name in read if name in names
        }
        keys = [stored.keys[row] for row in inverse.tolist()]
        num_bytes = stored.num_bytes
        if not set(names).isdisjoint(self._made):
            chosen = self._chosen_clips(ids, seed=seed, epoch=epoch)
            clip_numbers = self.table.numbers(ids, spans).tolist()
            shards, _ = self.source.manifest.locate(samples)
            urls = self.source.manifest.urls
            columns[MEDIA] = [
                {"url": urls[shard], "key": key, "clip": number, **self._described(clips)}
                for clips, key, number, shard in zip(
                    chosen, keys, clip_numbers, shards.tolist(), strict=True
                )
            ]
            for field in self.options.fields:
                if field != self.options.field:
                    index = self._files[field].index
                    chosen = [[clip.beside(index(clip.sample)) for clip in row] for row in chosen]
                    for media, row in zip(columns[MEDIA], chosen, strict=True):
                        media.setdefault("fields", {})[field] = self._described(row)
                clips, num_read = self._read_clips(field, chosen, names)
                num_bytes += num_read
                columns |= self._made_columns(field, chosen, clips)
            if cut_field is not None:
                values = values_of(stored.fields[cut_field])
                cuts = self.table.cuts[spans].tolist()
                for at, media in enumerate(columns[MEDIA]):
                    media["cut"] = cut_rows(values[inverse[at]], self.options)[cuts[at]]
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

    def ranges(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Iterable[PoolRanges] | None:
        """What `read_epoch` fetches; see `TellsRanges`."""
        names = self.fields if fields is None else fields
        spans, _ = self.table.locate(ids)
        samples = np.unique(self._source_ids(self.table.videos[spans]))
        beside = ranges_of(self.source, samples, self._read_beside(names))
        if beside is None:
            return None
        found = list(beside)
        if not set(names).isdisjoint(self._made):
            chosen = self._chosen_clips(ids, seed=seed, epoch=epoch)
            for field in self.options.fields:
                if field != self.options.field:
                    index = self._files[field].index
                    chosen = [[clip.beside(index(clip.sample)) for clip in row] for row in chosen]
                found += self._files[field].reads(_needed(field, chosen, names))
        return found

    def _read_beside(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The fields that are read of the samples themselves."""
        cut_field = self.options.cuts.split(".")[0] if self.options.cuts else None
        return tuple(name for name in self._beside if name in names or name == cut_field)

    def _chosen_clips(
        self, ids: NDArray[np.int64], *, seed: int, epoch: int
    ) -> list[list[ChosenClip]]:
        spans, numbers = self.table.locate(ids)
        samples = self._source_ids(self.table.videos[spans]).tolist()
        rows = zip(ids.tolist(), spans.tolist(), numbers.tolist(), samples, strict=True)
        return [self._chosen(*row, seed=seed, epoch=epoch) for row in rows]

    def _source_ids(self, videos: NDArray[np.int64]) -> NDArray[np.int64]:
        return videos if self._indices is None else self._indices[videos]

    def _repeated(self, column: Column, rows: NDArray[np.intp]) -> Column:
        """A value of the sample for each of its clips."""
        if isinstance(column, BytesColumn):
            return BytesColumn(column.buffer, column.starts[rows], column.lengths[rows])
        if isinstance(column, np.ndarray):
            return column[rows]
        values = list(column)
        picked = [values[row] for row in rows.tolist()]
        # A map() of one clip must not change the value of another one.
        return list(map(copied, picked)) if traits_of(self.source).holds_objects else picked

    def _chosen(
        self, row: int, span: int, number: int, sample: int, *, seed: int, epoch: int
    ) -> list[ChosenClip]:
        index = self._files[self.options.field].index(sample)
        part = Span(index.first("video"), int(self.table.firsts[span]), int(self.table.stops[span]))
        starts = self.options.starts(part, number, seed=seed, epoch=epoch, sample=row)
        return [ChosenClip.of(sample, index, part, start, self.options) for start in starts]

    def _described(self, clips: list[ChosenClip]) -> dict[str, Any]:
        """What "__media__" says of the clips of a sample: lists of them with `per_sample`."""
        first, *_ = described = [clip.described() for clip in clips]
        if self.options.per_sample is None:
            return first
        lists = {name: [each[name] for each in described] for name in ("frames", "pts")}
        return {**first, **lists}

    def _read_clips(
        self, field: str, chosen: list[list[ChosenClip]], names: tuple[str, ...]
    ) -> tuple[list[list[Clip]], int]:
        """The bytes of clips; those of one video share what they have in common."""
        files, needed = self._files[field], _needed(field, chosen, names)
        read = files.read(needed) if needed else {}
        num_bytes = sum(len(data) for parts in read.values() for _, data in parts)

        def opened(clip: ChosenClip) -> Clip:
            fetch = partial(_fetched, files, clip.sample)
            held = HeldRanges(clip.index.num_bytes, read.get(clip.sample, []), fetch)
            return Clip(held, clip, self._silence)

        return [[opened(clip) for clip in row] for row in chosen], num_bytes

    @cached_property
    def _silence(self) -> tuple[int, int]:
        """Rate and channels of the first sound among the first videos; a batch has one shape."""
        if self.options.audio is not None:
            files = self._files[self.options.field]
            for sample in self._source_ids(self.table.videos[:_LOOKED_AT]).tolist():
                for track in files.index(sample).tracks:
                    if track.kind == "audio":
                        return track.rate, track.num_channels
        return 48000, 1

    def _made_columns(
        self, field: str, chosen: list[list[ChosenClip]], clips: list[list[Clip]]
    ) -> dict[str, Column]:
        shown = np.array([[clip.frames for clip in row] for row in chosen], np.int64) >= 0
        shown = shown.reshape(len(chosen), self.options.per_sample or 1, self.options.frames)
        values: list[Any] = [Clips(row) for row in clips]
        if self.options.per_sample is None:
            shown, values = shown[:, 0], [row[0] for row in clips]
        sound = f"{field}.audio"
        return {field: values, mask_of(field): shown, sound: values, mask_of(sound): values}


def _needed(
    field: str, chosen: list[list[ChosenClip]], names: tuple[str, ...]
) -> dict[int, list[tuple[int, int]]]:
    """By sample the ranges that its clips are made of."""
    sound, needed = f"{field}.audio", defaultdict[int, list[tuple[int, int]]](list)
    has_sound = not {sound, mask_of(sound)}.isdisjoint(names)
    for clip in chain.from_iterable(chosen):
        needed[clip.sample] += clip.ranges(pictures=field in names, sound=has_sound)
    return {sample: joined_ranges(ranges) for sample, ranges in needed.items() if ranges}


def _fetched(files: MediaFiles, sample: int, start: int, stop: int) -> memoryview:
    ((begin, data),) = files.read({sample: [(start, stop)]})[sample]
    return data[start - begin : stop - begin]
