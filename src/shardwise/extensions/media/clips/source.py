"""Clips as samples: a source over the source of their videos."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Column, Columns, mask_of, values_of
from shardwise.dataset.field import refuse_reserved
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.clip import Clip, Clips
from shardwise.extensions.media.clips.files import (
    HeldRanges,
    MediaFiles,
    Part,
    hold_ranges,
    ranges_by_sample,
)
from shardwise.extensions.media.clips.options import ClipOptions
from shardwise.extensions.media.clips.owners import Owners
from shardwise.extensions.media.clips.table import cut_rows
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.extensions.media.files.sound_window import open_sound
from shardwise.extensions.media.files.timeline import Span
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import ReadsEpochs, Source, SourceTraits, joined_ranges
from shardwise.sources.samples import removed_of
from shardwise.storage import PoolRanges

MEDIA = "__media__"
# Videos that are looked at for the form of the silence of others.
_LOOKED_AT = 64


@dataclass(frozen=True)
class ClipCounts:
    """Counts of used and dropped videos.

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

    The table of clips, 24 bytes per video, travels with the pickled source. `fields` are copied
    from the samples of the videos, whose ids are `indices` (None for all).
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
        self._owners = Owners(source, indices, fields)
        self._files = files
        self._identity = identity
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
        return self.source.default_shuffle

    @cached_property
    def traits(self) -> SourceTraits:
        layouts = {}
        if self.options.short == "mask":
            group = () if self.options.per_sample is None else (self.options.per_sample,)
            row = ((*group, self.options.frames), np.dtype(np.bool_))
            layouts = {mask_of(name): row for name in self.options.fields}
        return self._owners.traits(self._made, layouts)

    @cached_property
    def manifest(self) -> Manifest:
        """The videos' shards, with the counts of their clips.

        The fingerprint is made of the videos', of their indexes and of the options.
        """
        digest = hashlib.sha256(f"{self.options.described} {self._identity}\n".encode())
        for name in ("videos", "firsts", "stops", "counts"):
            digest.update(np.ascontiguousarray(getattr(self.table, name)).data)
        return self._owners.manifest("clips", digest.hexdigest(), self.table.clips_by)

    @property
    def removed(self) -> NDArray[np.int64]:
        gone = np.isin(self._owners.ids(self.table.videos), removed_of(self.source))
        return np.flatnonzero(np.repeat(gone, self.table.counts))

    def owner_of(self, clip: int, *_field: object) -> tuple[Source, int]:
        spans, _ = self.table.locate(np.array([clip], np.int64))
        return self.source, int(self._owners.ids(self.table.videos[spans])[0])

    def read_epoch(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Columns:
        names = self.fields if fields is None else fields
        ids = np.asarray(ids, np.int64)
        spans, _ = located = self.table.locate(ids)
        is_made = not set(names).isdisjoint(self._made)
        cut_field = self.options.cut_field if is_made else None
        stored, inverse, columns = self._owners.read(self.table.videos[spans], names, cut_field)
        keys = [stored.keys[row] for row in inverse.tolist()]
        num_bytes = stored.num_bytes
        if is_made:
            clip_numbers = self.table.numbers(ids, spans).tolist()
            samples = self._owners.ids(self.table.videos[spans])
            shards, _ = self.source.manifest.locate(samples)
            urls = self.source.manifest.urls
            columns[MEDIA] = [
                {"url": urls[shard], "key": key, "clip": number}
                for key, number, shard in zip(keys, clip_numbers, shards.tolist(), strict=True)
            ]
            for field, chosen in self._choose_clips(ids, *located, samples, epoch=epoch, seed=seed):
                described = map(self._describe_clips, chosen)
                for media, clip in zip(columns[MEDIA], described, strict=True):
                    if field == self.options.field:
                        media.update(clip)
                    else:
                        media.setdefault("fields", {})[field] = clip
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
        epoch: int = 0,
        seed: int = 0,
    ) -> Iterable[PoolRanges] | None:
        names = self.fields if fields is None else fields
        spans, numbers = self.table.locate(ids)
        samples = self._owners.ids(self.table.videos[spans])
        is_made = not set(names).isdisjoint(self._made)
        cut_field = self.options.cut_field if is_made else None
        parts = [self._owners.ranges(samples, names, cut_field)]
        if parts[0] is not None and is_made:
            files = [self._files[field] for field in self.options.fields]
            known = [all(each.has_index(sample) for each in files) for sample in samples.tolist()]
            located = [each[known] for each in (ids, spans, numbers, samples)]
            for field, chosen in self._choose_clips(*located, epoch=epoch, seed=seed):
                wanted = ranges_by_sample(self._list_parts(field, chosen, names))
                parts.append(self._files[field].ranges(wanted))
        return joined_ranges(parts)

    def _choose_clips(
        self, *located: NDArray[np.int64], epoch: int, seed: int
    ) -> Iterator[tuple[str, list[list[ChosenClip]]]]:
        """Choose clips by their ids, spans, numbers in these, and samples."""
        chosen = []
        for row, span, number, sample in zip(*map(np.ndarray.tolist, located), strict=True):
            index = self._files[self.options.field].index(sample)
            first, stop = int(self.table.firsts[span]), int(self.table.stops[span])
            part = Span(index.first("video"), first, stop)
            starts = self.options.starts(part, number, seed=seed, epoch=epoch, sample=row)
            chosen.append([ChosenClip.of(sample, index, part, at, self.options) for at in starts])
        yield self.options.field, chosen
        for field in self.options.fields:
            if field != self.options.field:
                of = self._files[field].index
                chosen = [[clip.beside(of(clip.sample)) for clip in row] for row in chosen]
                yield field, chosen

    def _describe_clips(self, clips: list[ChosenClip]) -> dict[str, Any]:
        """The values of a sample's clips in "__media__": lists of them with `per_sample`."""
        first, *_ = described = [clip.described() for clip in clips]
        if self.options.per_sample is None:
            return first
        lists = {name: [each[name] for each in described] for name in ("frames", "pts")}
        return {**first, **lists}

    def _read_clips(
        self, field: str, chosen: list[list[ChosenClip]], names: tuple[str, ...]
    ) -> tuple[list[list[Clip]], int]:
        held, num_bytes = hold_ranges(self._files[field], self._list_parts(field, chosen, names))
        opened = iter(held)
        return [[Clip(next(opened), clip, self._silence) for clip in row] for row in chosen], (
            num_bytes
        )

    def _list_parts(
        self, field: str, chosen: list[list[ChosenClip]], names: tuple[str, ...]
    ) -> list[Part]:
        sound = f"{field}.audio"
        has_sound = not {sound, mask_of(sound)}.isdisjoint(names)
        return [
            (clip.sample, clip.index, clip.ranges(pictures=field in names, sound=has_sound))
            for clip in chain.from_iterable(chosen)
        ]

    @cached_property
    def _silence(self) -> tuple[int, int]:
        """Rate and channels of the first sound among the first videos; a batch has one shape."""
        if self.options.audio is not None:
            files = self._files[self.options.field]
            for sample in self._owners.ids(self.table.videos[:_LOOKED_AT]).tolist():
                index = files.index(sample)
                if any(track.kind == "audio" for track in index.tracks):
                    held = HeldRanges(files, sample, index.num_bytes, [])
                    sound = open_sound(held, index=index)
                    return sound.rate, sound.num_channels
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
