"""Numbered records in shards: what MDS, LitData, TFRecord and JSON lines share.

A record is one sample: a byte range of its shard, which is cut into fields as the format defines.
Shards are looked at when they are first read, once per process.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import no_such_field
from shardwise.base.columns import BytesColumn, Column, Columns
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.formats.records.forms import (
    STORED,
    BadRowError,
    Form,
    column_of,
    raw_picture,
)
from shardwise.extensions.tables.row_group_cache import RowGroupCache, window_within
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import (
    FilePool,
    FileStat,
    PoolRanges,
    StorageOptions,
    UrlRanges,
    is_local,
    read_files,
    require_not_written_since,
)

# Places of 4 million records, or a few unzipped shards.
_DEFAULT_BYTES = 1 << 30
# Unzipped shards that a window shuffle reads at a time.
_MAX_LANES = 64


@dataclass(frozen=True)
class RecordShard:
    """An opened shard: where records start and end, int64 (or mapped); all bytes, if kept."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    content: NDArray[np.uint8] | None = None
    is_mapped: bool = False

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, in bytes."""
        content = 0 if self.content is None else self.content.nbytes
        return content + (0 if self.is_mapped else self.starts.nbytes + self.ends.nbytes)


@dataclass(frozen=True)
class RecordFields:
    """Records in a buffer, uint8 `[total]`: where each starts, and its length, int64 `[rows]`."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class RecordSource(ABC):
    """Samples by id from numbered records; `memory_bytes` bounds offsets and unzipped shards."""

    default_shuffle: Literal["window"] = "window"
    urls: Sequence[str]
    _noun = "files"

    def __init__(
        self, *, storage: StorageOptions | None = None, memory_bytes: int = _DEFAULT_BYTES
    ) -> None:
        self._pool = FilePool(options=storage)
        self._memory_bytes = memory_bytes
        self._shards: RowGroupCache[RecordShard] = RowGroupCache(memory_bytes)
        self._undecoded: frozenset[str] = frozenset()
        # When an index without times was read.
        self._opened_ns = 0

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} {self._noun}" if len(self.urls) > 1 else ""
        return f"{type(self).__name__}({shown(self.urls[0])!r}{more})"

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts."""

    @property
    @abstractmethod
    def _forms(self) -> Mapping[str, Form]:
        """The fields in storage order, as they are when nothing is undecoded."""

    @property
    def _is_zipped(self) -> bool:
        """Whether a shard is unzipped as a whole to read any of its records."""
        return False

    @abstractmethod
    def _open_shard(self, number: int) -> RecordShard:
        """Find the records of a shard; raises DataError for one that is damaged."""

    @abstractmethod
    def _cut_columns(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:
        """Cut records into stored or decoded columns by name; BadRowError for a damaged record."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self._forms)

    @cached_property
    def _are_local(self) -> bool:
        return all(is_local(shard.url) for shard in self.manifest.shards)

    @cached_property
    def traits(self) -> SourceTraits:
        """The traits: fields that are values, and few lanes for shards that are unzipped."""
        forms = {name: self._form(name) for name in self._forms}
        is_remote = self._pool.options.cache is None and not self._are_local
        window = window_within(self._memory_bytes, self.manifest, max_lanes=_MAX_LANES)
        return SourceTraits(
            value_fields=frozenset(name for name, form in forms.items() if form.is_value),
            layouts={name: form.layout for name, form in forms.items() if form.layout is not None},
            counts_waits=True,
            random_reads_are_requests=is_remote and not self._is_zipped,
            reads_pieces=self._is_zipped,
            window_shape=window if self._is_zipped else None,
        )

    def undecoded(self, names: Sequence[str]) -> Self:
        """The same samples with these fields as they are stored, where they are bytes."""
        if not names:
            return self
        other = copy.copy(self)
        other._undecoded = self._undecoded.union(names)
        other.__dict__.pop("traits", None)
        return other

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        names = self.fields if fields is None else fields
        unknown = [name for name in names if name not in self._forms]
        if unknown:
            raise ValueError(no_such_field(unknown[0], self.fields))
        self.manifest.check(ids)
        shards, rows = self.manifest.locate(ids)
        keys = self.manifest.row_keys(shards, rows)
        if not len(ids) or not names:
            return Columns(ids, keys, {name: self._empty(name) for name in names})
        records = self._read_records(shards, rows)
        num_bytes = int(records.lengths.sum())
        name = ""
        try:
            stored = self._cut_columns(records, names)
            columns = {}
            for name in names:
                column = stored[name]
                if isinstance(column, BytesColumn):
                    column = column_of(self._form(name), column)
                columns[name] = column
        except BadRowError as error:
            row = error.row
            shard = int(shards[row])
            raise DataError(
                error.reason,
                url=self.manifest.shards[shard].url,
                key=keys[row],
                field=error.field or name or None,
                offset=int(self._shard(shard).starts[rows[row]]),
                index=int(ids[row]),
            ) from error.__cause__
        return Columns(ids, keys, columns, num_bytes)

    def _form(self, name: str) -> Form:
        form = self._forms[name]
        if name not in self._undecoded or form.is_cut:
            return form
        # Pixels are not an encoded file: a decoder of images reports that better than stored bytes.
        return form if form.decode is raw_picture else STORED

    def _empty(self, name: str) -> Column:
        form = self._form(name)
        if form.layout is not None:
            return np.empty((0, *form.layout[0]), form.layout[1])
        return [] if form.is_value else BytesColumn.of([])

    def _shard(self, number: int) -> RecordShard:
        def make() -> tuple[RecordShard, int]:
            shard = self._open_shard(number)
            return shard, shard.num_bytes

        return self._shards.get(number, make)

    def _first_stat(self, url: str) -> FileStat:
        """Pin a shard of an index without times; StaleIndexError if it is newer than the index."""
        stat = self._pool.get(url).stat()
        require_not_written_since(self._opened_ns, stat, url)
        self._pool.pin(url, stat)
        return stat

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_: int
    ) -> Iterable[PoolRanges] | None:
        """The ranges of remote shards that `read` fetches; whole shards where they are zipped."""
        if self._are_local or self._is_zipped:
            return None
        shards, rows = self.manifest.locate(ids)
        opened = [shard for shard in np.unique(shards).tolist() if shard in self._shards]
        known = np.isin(shards, opened)
        if fields == () or not known.any():
            return ()
        return [(self._pool, self._locate_records(shards[known], rows[known]).reads)]

    def _read_records(self, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> RecordFields:
        """Read records into one buffer, adjacent ones by one read."""
        located = self._locate_records(shards, rows)
        buffer = np.empty(int(located.lengths.sum()), np.uint8)
        for at, data in located.copies:
            buffer[at : at + len(data)] = data
        read_files(self._pool, located.reads, buffer.data)
        return RecordFields(buffer, located.places, located.lengths)

    def _locate_records(self, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> _Located:
        order = np.lexsort((rows, shards))
        starts = np.empty(len(rows), np.int64)
        lengths = np.empty(len(rows), np.int64)
        places = np.empty(len(rows), np.int64)
        located = _Located(places, lengths)
        total = 0
        for part in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            number = int(shards[part[0]])
            shard = self._shard(number)
            starts[part] = shard.starts[rows[part]]
            stops = shard.ends[rows[part]]
            lengths[part] = stops - starts[part]
            begin, ends = total, total + np.cumsum(lengths[part])
            places[part] = ends - lengths[part]
            total = int(ends[-1])
            # A record that starts where the one before ends is read along with it.
            is_last = np.append(starts[part][1:] != stops[:-1], True)
            is_first = np.append(True, is_last[:-1])
            offsets, marks = starts[part][is_first], ends[is_last]
            is_filled = np.diff(marks, prepend=begin) > 0
            offsets, marks = offsets[is_filled].tolist(), marks[is_filled].tolist()
            if shard.content is not None:
                for offset, mark in zip(offsets, marks, strict=True):
                    located.copies.append((begin, shard.content[offset : offset + mark - begin]))
                    begin = mark
            elif marks:
                located.reads.append((self.manifest.shards[number].url, offsets, marks, begin))
        return located


@dataclass(frozen=True)
class _Located:
    """Positions of records in a buffer, int64 `[rows]`, and its sources: copies, and reads."""

    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    copies: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    reads: list[UrlRanges] = field(default_factory=list)
