"""Clips as samples: a source over the source of their videos."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, Columns, mask_of, values_of
from shardwise.dataset.decoding import copied
from shardwise.dataset.field import refuse_reserved
from shardwise.dataset.subset import subset_fingerprint, subset_shard_sizes
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.clip import Clip, HeldRanges
from shardwise.extensions.media.clips.files import MediaFiles
from shardwise.extensions.media.clips.options import ClipOptions
from shardwise.extensions.media.clips.table import cut_rows
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.extensions.media.files.coded_frames import joined_ranges
from shardwise.extensions.media.files.timeline import Span
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    EpochReads,
    Source,
    SourceTraits,
    traits_of,
    value_fields_of,
)

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


class ClipSource(EpochReads):
    """Clips of the videos of a source; satisfies `shardwise.sources.protocol.Source`.

    The table of clips, 24 bytes a video, travels with the pickled source.

    Args:
        source: the videos.
        indices: int64 `[videos]`, the ids of the samples in it; None for all.
        fields: of a clip, copied from its sample; the video's is among them.
        files: the videos' bytes and indexes.
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
        files: MediaFiles,
        options: ClipOptions,
        table: ClipTable,
        identity: str,
    ) -> None:
        refuse_reserved(fields, source)
        self.source = source
        self.options = options
        self.table = table
        self.counts = ClipCounts(len(table.videos), table.num_short, table.num_bad)
        self._indices = indices
        self._files = files
        self._identity = identity
        self._beside = tuple(name for name in fields if name != options.field)
        name = options.field
        made = [mask_of(name)] if options.short == "mask" else []
        made += [f"{name}.audio", mask_of(f"{name}.audio")] if options.audio else []
        self._made = (*made, MEDIA)
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
            layouts[mask_of(self.options.field)] = ((self.options.frames,), np.dtype(np.bool_))
        values = set(value_fields_of(self.source)).intersection(self._beside)
        return SourceTraits(
            value_fields={*values, self.options.field, *self._made},
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
        spans, numbers = self.table.locate(ids)
        samples = self._source_ids(self.table.videos[spans])
        unique, inverse = np.unique(samples, return_inverse=True)
        cut_field = self.options.cuts.split(".")[0] if self.options.cuts else None
        read = [name for name in self._beside if name in names or name == cut_field]
        stored = self.source.read(unique, tuple(read))
        columns: dict[str, Any] = {
            name: self._repeated(stored.fields[name], inverse) for name in read if name in names
        }
        keys = [stored.keys[row] for row in inverse.tolist()]
        num_bytes = stored.num_bytes
        if not set(names).isdisjoint((self.options.field, *self._made)):
            chosen = [
                self._chosen(*clip, seed=seed, epoch=epoch)
                for clip in zip(ids.tolist(), spans.tolist(), numbers.tolist(), samples.tolist(),
                                strict=True)
            ]  # fmt: skip
            clips, num_read = self._read_clips(chosen, names)
            num_bytes += num_read
            columns |= self._made_columns(chosen, clips)
            clip_numbers = self.table.numbers(ids, spans).tolist()
            shards, _ = self.source.manifest.locate(samples)
            urls = self.source.manifest.urls
            columns[MEDIA] = [
                {"url": urls[shard], "key": key, "clip": number, **clip.described()}
                for clip, key, number, shard in zip(
                    chosen, keys, clip_numbers, shards.tolist(), strict=True
                )
            ]
            if cut_field is not None:
                values = values_of(stored.fields[cut_field])
                cuts = self.table.cuts[spans].tolist()
                for row, media in enumerate(columns[MEDIA]):
                    media["cut"] = cut_rows(values[inverse[row]], self.options)[cuts[row]]
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

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
        self, clip: int, span: int, number: int, sample: int, *, seed: int, epoch: int
    ) -> ChosenClip:
        index = self._files.index(sample)
        part = Span(index.first("video"), int(self.table.firsts[span]), int(self.table.stops[span]))
        start = self.options.start(part, number, seed=seed, epoch=epoch, clip=clip)
        return ChosenClip.of(sample, index, part, start, self.options)

    def _read_clips(
        self, chosen: list[ChosenClip], names: tuple[str, ...]
    ) -> tuple[list[Clip], int]:
        """The bytes of clips; those of one video share what they have in common."""
        field = self.options.field
        has_sound = not {f"{field}.audio", mask_of(f"{field}.audio")}.isdisjoint(names)
        needed: dict[int, list[tuple[int, int]]] = {}
        for clip in chosen:
            ranges = clip.ranges(pictures=field in names, sound=has_sound)
            needed.setdefault(clip.sample, []).extend(ranges)
        needed = {sample: joined_ranges(ranges) for sample, ranges in needed.items() if ranges}
        read = dict(self._files.read(needed)) if needed else {}
        num_bytes = sum(len(data) for parts in read.values() for _, data in parts)
        clips = []
        for each in chosen:
            fetch = partial(self._fetched, each.sample)
            reader = HeldRanges(each.index.num_bytes, read.get(each.sample, []), fetch)
            clips.append(Clip(reader, each, self._silence))
        return clips, num_bytes

    @cached_property
    def _silence(self) -> tuple[int, int]:
        """Rate and channels of the first sound among the first videos; a batch has one shape."""
        for sample in self._source_ids(self.table.videos[:_LOOKED_AT]).tolist():
            for track in self._files.index(sample).tracks:
                if track.kind == "audio" and self.options.audio is not None:
                    return track.rate, track.num_channels
        return 48000, 1

    def _fetched(self, sample: int, start: int, stop: int) -> memoryview:
        ((_, parts),) = self._files.read({sample: [(start, stop)]})
        ((begin, data),) = parts
        return data[start - begin : stop - begin]

    def _made_columns(self, chosen: list[ChosenClip], clips: list[Clip]) -> dict[str, Column]:
        field = self.options.field
        shown = np.array([clip.frames for clip in chosen], np.int64) >= 0
        return {
            field: clips,
            mask_of(field): shown.reshape(len(chosen), self.options.frames),
            f"{field}.audio": clips,
            mask_of(f"{field}.audio"): clips,
        }
