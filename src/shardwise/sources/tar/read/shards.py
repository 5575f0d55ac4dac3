"""The shards of a dataset, opened one by one or listed by manifest files, as one set.

It knows where the payloads of samples lie, and which byte ranges to read for them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import no_such_field
from shardwise.base.columns import fixed_width_texts
from shardwise.base.errors import StaleIndexError
from shardwise.sources.manifest import Manifest
from shardwise.sources.samples import joined_removed
from shardwise.sources.tar.index.build import index_for
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed_shards import ListedShards
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_items import ShardPart
from shardwise.sources.tar.index.shard_version import fits
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.storage import FileStat, UrlRanges, described, is_local, max_open_files

# Reading 16 KiB that are not needed costs about as much as another read call.
GAP_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Reads that fill one buffer.

    Attributes:
        files: int64 `[reads]`, which file each read is from.
        offsets: int64 `[reads]`, where it starts in the file.
        ends: int64 `[reads]`, where it ends in the buffer; it starts where the one before ends.
        starts: int64 `[payloads]`, where each payload starts in the buffer.
    """

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    starts: NDArray[np.int64]

    def by_url(self, urls: Sequence[str]) -> list[UrlRanges]:
        """The reads as `read_files` takes them; `urls` are those of the files, by number."""
        offsets, ends = self.offsets.tolist(), self.ends.tolist()
        reads: list[UrlRanges] = []
        first = begin = 0
        for file, group in groupby(self.files.tolist()):
            stop = first + len(list(group))
            reads.append((urls[file], offsets[first:stop], ends[first:stop], begin))
            first, begin = stop, ends[stop - 1]
        return reads

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return int(self.ends[-1]) if len(self.ends) else 0


def plan_reads(
    files: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> ReadPlan:
    """Order payloads by file and offset, and join those that lie close together.

    Args:
        files: int64 `[payloads]`, the number of the file of each. The largest number and the
            largest offset take 62 bits together: 2**20 files of 4 TiB, or 2**32 of 1 GiB.
        offsets: int64 `[payloads]`, where it starts in that file.
        sizes: int64 `[payloads]`, bytes; 0 or less for nothing to read.
    """
    payload_starts = np.zeros(len(sizes), np.int64)
    rows = np.flatnonzero(sizes > 0)
    if not len(rows):
        empty = np.empty(0, np.int64)
        return ReadPlan(empty, empty, empty, payload_starts)
    offsets, sizes = offsets[rows], sizes[rows]
    # One int64 holds file and offset, with more than a gap between the ends of one file and the
    # start of the next.
    bits = (int((offsets + sizes).max()) + GAP_BYTES).bit_length()
    begins = (files[rows] << bits) + offsets
    if (begins[1:] < begins[:-1]).any():
        order = np.argsort(begins, kind="stable")
        rows, begins, sizes = rows[order], begins[order], sizes[order]
    # Payloads may overlap: the same sample may be requested twice.
    reach = np.maximum.accumulate(begins + sizes)
    # True where a read starts, and at the end.
    is_first = np.ones(len(begins) + 1, np.bool_)
    is_first[1:-1] = begins[1:] > reach[:-1] + GAP_BYTES
    firsts = np.flatnonzero(is_first)
    starts = begins[firsts[:-1]]
    lengths = reach[firsts[1:] - 1] - starts
    ends = np.cumsum(lengths)
    shift = ends - lengths - starts
    payload_starts[rows] = begins + shift[np.cumsum(is_first[:-1]) - 1]
    return ReadPlan(starts >> bits, starts & ((1 << bits) - 1), ends, payload_starts)


# 64 MiB per process and set of fields: about 3 million samples of two fields.
_MAX_BYTES = 64 << 20
_MAX_KEY_BYTES = 64
# The size of a field that a sample lacks: more than any field of a shard below 4 GiB has.
_MISSING = np.uint32(0xFFFFFFFF)


class OffsetTable:
    """Offsets and sizes of some fields of all samples, in flat arrays. Safe in threads.

    A batch of a shuffled epoch has rows from as many shards as it has rows. Asking the indexes of
    shards costs up to ten numpy calls each; asking one array costs one for the batch. The arrays
    are filled shard by shard at first use. Data sets where they would exceed 64 MiB, or with a
    shard of 4 GiB, have none.
    """

    def __init__(self, shards: ShardSet, names: tuple[str, ...]) -> None:
        num_samples, key_bytes = shards.manifest.num_samples, shards.key_bytes
        self._shards = shards
        self._names = names
        self._blocks = np.empty((len(names), num_samples), np.uint32)
        self._sizes = np.empty((len(names), num_samples), np.uint32)
        self._keys = np.empty((num_samples, key_bytes), np.uint8) if key_bytes else None
        self._is_filled = np.zeros(len(shards.manifest.sizes), np.bool_)

    @staticmethod
    def fits(shards: ShardSet, num_fields: int) -> bool:
        """Whether the arrays are small enough to have, and wide enough for these shards."""
        manifest = shards.manifest
        num_bytes = (8 * num_fields + shards.key_bytes) * manifest.num_samples
        return manifest.shard_bytes.max(initial=0) < _MISSING and num_bytes <= _MAX_BYTES

    def locate(
        self, ids: NDArray[np.int64], *, keyed: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[str]]:
        """Find payloads: shards `[rows]`; offsets and sizes (-1: none) `[fields, rows]`; keys."""
        shard_of, row_of = self._shards.manifest.locate(ids)
        if not self._is_filled[shard_of].all():
            for shard in np.unique(shard_of[~self._is_filled[shard_of]]).tolist():
                self._fill(shard)
        offsets = self._blocks.take(ids, axis=1).astype(np.int64)
        offsets *= BLOCK
        stored = self._sizes.take(ids, axis=1)
        sizes = stored.astype(np.int64)
        sizes[stored == _MISSING] = -1
        keys = self._keys_of(ids, shard_of, row_of) if keyed else []
        return shard_of, offsets, sizes, keys

    def _fill(self, shard: int) -> None:
        index = self._shards.index(shard)
        stop = int(self._shards.manifest.ends[shard])
        rows = slice(stop - index.num_samples, stop)
        offsets, sizes = index.locate_all(self._names, np.arange(index.num_samples))
        self._blocks[:, rows] = offsets // BLOCK
        # -1 becomes the mark of a missing field.
        self._sizes[:, rows] = sizes.astype(np.uint32)
        if self._keys is not None:
            self._keys[rows] = index.keys.as_rows()
        # Last, for threads that read meanwhile. Two that fill one shard write the same values.
        self._is_filled[shard] = True

    def _keys_of(
        self, ids: NDArray[np.int64], shard_of: NDArray[np.int64], row_of: NDArray[np.int64]
    ) -> list[str]:
        if self._keys is None:
            at = zip(shard_of.tolist(), row_of.tolist(), strict=True)
            return [self._shards.index(shard).keys[row] for shard, row in at]
        return fixed_width_texts(self._keys.take(ids, axis=0))


# Up to this many ends are a list, which is bisected in half the time.
_MAX_LISTED_ENDS = 1 << 16
# Sets of fields whose offset tables are kept, of at most 64 MiB each.
_MAX_TABLES = 4


class ShardSet:
    """The shards of some parts, one after the other, with their indexes.

    An index is mapped when it is first used. The set may be used by any thread and after a fork. It
    does not pickle: the parts do. `pin` is called with the URL and version of each remote shard
    that was opened, and of a listed or local one when it is first used.
    """

    def __init__(
        self,
        parts: Sequence[ShardPart],
        store: IndexStore,
        *,
        pin: Callable[[str, FileStat], None],
    ) -> None:
        manifests = [part.manifest for part in parts]
        self.manifest = Manifest.joined("tar", manifests) if len(manifests) > 1 else manifests[0]
        self.fields = tuple(dict.fromkeys(name for part in parts for name in part.fields))
        self._field_set = frozenset(self.fields)
        self.has_digests = any(part.has_digests for part in parts)
        ends = self.manifest.ends
        part_ends = np.cumsum([each.num_samples for each in manifests])
        self.removed = joined_removed(parts, part_ends)
        # Both are read as sequences only.
        few = len(ends) <= _MAX_LISTED_ENDS
        self._ends = ends.tolist() if few else cast("list[int]", ends.data)
        self._parts = tuple(parts)
        self._part_ends = list(accumulate(len(each.urls) for each in manifests))
        self._store = store
        self._pin = pin
        for part in parts:
            for url, stat in part.pins():
                pin(url, stat)
        key_lengths = frozenset().union(*(part.key_lengths for part in parts))
        key_length = next(iter(key_lengths)) if len(key_lengths) == 1 else None
        self.key_bytes = key_length if key_length and key_length <= _MAX_KEY_BYTES else 0
        self._checked: set[int] = set()
        self._mapped: dict[int, ShardIndex] = {}
        self._tables: dict[tuple[str, ...], OffsetTable | None] = {}

    def version(self) -> str:
        """The times and ETags of all shards: 16 hex digits, others after any shard is rewritten."""
        digest = hashlib.sha256()
        for part in self._parts:
            for place in range(len(part.manifest.urls)):
                stat = part.stat(place)
                digest.update(f"{stat.num_bytes} {stat.mtime_ns} {stat.etag}\n".encode())
        return digest.hexdigest()[:16]

    def check_fields(self, names: tuple[str, ...]) -> None:
        """Raise ValueError for a field that no sample has."""
        if not self._field_set.issuperset(names):
            wrong = next(name for name in names if name not in self._field_set)
            raise ValueError(no_such_field(wrong, self.fields))

    def locate(self, sample: int) -> tuple[int, int]:
        """The shard and row of one sample, by its id: as `Manifest.locate`, for single reads."""
        shard = bisect_right(self._ends, sample)
        return shard, sample - (self._ends[shard - 1] if shard else 0)

    def is_opened(self, shard: int) -> bool:
        """Whether a shard was opened: its index makes no request then."""
        part = self._parts[bisect_right(self._part_ends, shard)]
        return shard in self._checked or not isinstance(part, ListedShards)

    def index(self, shard: int) -> ShardIndex:
        return self._mapped.get(shard) or self._load(shard)

    def offset_table(self, names: tuple[str, ...]) -> OffsetTable | None:
        """The offsets of the named fields of all samples; None if they would exceed 64 MiB."""
        if names not in self._tables:
            fits_in = OffsetTable.fits(self, len(names))
            while len(self._tables) >= _MAX_TABLES:
                self._tables.pop(next(iter(self._tables)), None)
            self._tables[names] = OffsetTable(self, names) if fits_in else None
        return self._tables[names]

    def _load(self, shard: int) -> ShardIndex:
        owner = bisect_right(self._part_ends, shard)
        part = self._parts[owner]
        place = shard - (self._part_ends[owner - 1] if owner else 0)
        url, num_samples = self.manifest.urls[shard], self.manifest.sizes.item(shard)
        # The first look at a listed shard holds it against its entry, before its index is used.
        opened = part.stat(place)
        is_pinned = bool(opened.etag) and not isinstance(part, ListedShards)
        if shard not in self._checked and not is_pinned:
            self._pin(url, opened)
        index = part.unsaved.get(place)
        if index is None:
            is_new = shard not in self._checked
            if is_new and not is_local(url):
                # Another rank opened the shard: this machine may have no copy of its index.
                self._store.find(url, opened)
            index = self._store.load(url, opened, check=is_new)
        if index is None:
            # It was removed since.
            index = part.unsaved[place] = index_for(url, self._store)
        while len(self._mapped) >= max_open_files():
            # Pop with a default: another thread may evict the same index.
            self._mapped.pop(next(iter(self._mapped)), None)
        self._mapped[shard] = index
        has_changed = not fits(index.header, url, opened)
        now = index.header.stat
        # Reads of a shard with an ETag are pinned to the opened version.
        if not opened.etag:
            now = self._store.stat(url)
            has_changed |= now != opened
        if has_changed or index.num_samples != num_samples:
            self._mapped.pop(shard, None)
            part.unsaved.pop(place, None)
            raise StaleIndexError(
                f"the shard was replaced while it was in use: {described(opened)} and "
                f"{num_samples} samples when it was opened, {described(now)} and "
                f"{index.num_samples} samples now; open the dataset again",
                url=url,
            )
        self._checked.add(shard)
        return index
