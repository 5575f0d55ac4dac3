"""Samples that stand in a shard as `TarWriter` would write them: copied with their headers.

Every header and every padding is held against what the writer would write. What differs in a byte
is left to the writer, so that copies are the same shards as those that are encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, StorageError
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.read.reader import Reader
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.sources.tar.write.partial_shard import MAX_NAME, MAX_SIZE, Member, headers
from shardwise.storage import File

# 4 MiB cost as little per byte as 1 MiB, which stays in the L2 cache, and a quarter of the calls.
_PIECE_BYTES = 1 << 22
# Numbers that are located at a time, rows times fields: 512 KiB.
_MAX_CELLS = 1 << 16
_WORDS = np.arange(BLOCK // 8)
# After this many pieces without a fit, another program wrote the shard.
_MAX_MISSES = 8
# Names that `encode_sample` takes for certain; it is asked about all others.
_PLAIN_KEY = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]*/)*[A-Za-z0-9][A-Za-z0-9_-]*")
_PLAIN_FIELD = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Samples `[start, stop)`, adjacent in a shard; without `keys` they must be encoded.

    `data` has their members with headers and padding, until the next run is requested.
    """

    start: int
    stop: int
    keys: Sequence[str] = ()
    fields: frozenset[str] = frozenset()
    num_bytes: int = 0
    data: bytes | memoryview = b""
    members: Sequence[Member] = ()


def stored_runs(reader: Reader, start: int, stop: int) -> Iterator[StoredRun]:
    """Yield samples `[start, stop)` of local shards as runs to copy, or to encode."""
    buffer = bytearray(_PIECE_BYTES)
    while start < stop:
        shard, row = reader.shards.locate(start)
        end = min(stop, int(reader.shards.manifest.ends[shard]))
        try:
            index = reader.shards.index(shard)
        except DataError:
            # Encoding reports the error of each sample.
            yield StoredRun(start, end)
        else:
            num_rows = max(1, _MAX_CELLS // max(1, len(index.fields)))
            end = min(end, start + num_rows)
            file, rows = reader.file(shard), _Rows.of(index, row, row + end - start)
            yield from _runs_of(file, rows, start, buffer)
        start = end


@dataclass(frozen=True, slots=True)
class _Rows:
    """The positions of neighbours' members in a shard, if they stand as they are written.

    Attributes:
        keys, begins, ends, are_dense: `[rows]`; a sample is from its first header to its last
            padding, and dense if nothing but its members lies between.
        members: the first member of each sample, and after the last one, `[rows + 1]`.
        fields, names, offsets, sizes: `[members]`; a sample's members are sorted by field.
        packed: the names as uint8 `[members, width]`, up to the length that fits into a header.
        may_fit: whether a header could be as it is written, as far as the index shows.
    """

    keys: list[str]
    begins: list[int]
    ends: list[int]
    are_dense: list[bool]
    members: list[int]
    fields: list[str]
    names: list[bytes]
    packed: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    may_fit: NDArray[np.bool_]

    @classmethod
    def of(cls, index: ShardIndex, first: int, stop: int) -> _Rows:
        rows, fields = np.arange(first, stop, dtype=np.int64), sorted(index.fields)
        every_offset, every_size = index.locate_all(fields, rows)
        # One element per member from here on, sample by sample.
        row_of, field_of = np.nonzero(every_size.T >= 0)
        offsets, sizes = every_offset[field_of, row_of], every_size[field_of, row_of]
        lengths = BLOCK + -(-sizes // BLOCK) * BLOCK
        members = np.searchsorted(row_of, np.arange(len(rows) + 1))
        begins = np.minimum.reduceat(offsets - BLOCK, members[:-1])
        ends = np.maximum.reduceat(offsets - BLOCK + lengths, members[:-1])
        are_dense = (begins >= 0) & (ends - begins == np.add.reduceat(lengths, members[:-1]))
        # The offset of each header if the members stand in the order of their fields.
        before = np.cumsum(lengths) - lengths
        places = begins[row_of] + before - before[members[:-1]][row_of]
        keys, used = index.keys.take(rows), [fields[number] for number in field_of.tolist()]
        names = [
            f"{keys[row]}.{field}".encode("utf-8", "surrogateescape")
            for row, field in zip(row_of.tolist(), used, strict=True)
        ]
        name_lengths = np.fromiter(map(len, names), np.int64, len(names))
        width = min(MAX_NAME, int(name_lengths.max()))
        are_plain = [_PLAIN_KEY.fullmatch(key) is not None for key in keys]
        return cls(
            keys=keys,
            begins=begins.tolist(),
            ends=ends.tolist(),
            are_dense=are_dense.tolist(),
            members=members.tolist(),
            fields=used,
            names=names,
            packed=np.array(names, f"S{width}").view(np.uint8).reshape(-1, width),
            offsets=offsets,
            sizes=sizes,
            may_fit=(places == offsets - BLOCK)
            & (name_lengths <= MAX_NAME)
            & (sizes <= MAX_SIZE)
            & np.array(are_plain)[row_of],
        )

    def piece(self, first: int) -> int:
        """Find the end of the rows that are read together with this one."""
        begins, ends, last = self.begins, self.ends, first + 1
        most = begins[first] + _PIECE_BYTES
        while (
            last < len(ends)
            and self.are_dense[last]
            and begins[last] == ends[last - 1]
            and ends[last] <= most
        ):
            last += 1
        return last

    def are_as_written(self, data: memoryview, first: int, last: int) -> NDArray[np.bool_]:
        """Whether each row is what the writer writes, byte by byte except for the payloads."""
        low, high = self.members[first], self.members[last]
        sizes, blocks = self.sizes[low:high], (self.offsets[low:high] - self.begins[first]) // BLOCK
        # Words of 8 bytes: 64 per block.
        words = np.frombuffer(data, "<u8").reshape(-1, BLOCK // 8)
        expected = headers(self.packed[low:high], np.minimum(sizes, MAX_SIZE)).view("<u8")
        fits = self.may_fit[low:high] & (words[blocks - 1] == expected).all(axis=1)
        # The last block is zero after the payload.
        tails, (word, byte) = words[blocks + (sizes - 1) // BLOCK], np.divmod(sizes % BLOCK, 8)
        behind = tails[np.arange(len(tails)), word] >> (8 * byte).astype(np.uint64)
        is_padded = (behind == 0) & ~((tails != 0) & (word[:, None] < _WORDS)).any(axis=1)
        fits &= is_padded | (sizes % BLOCK == 0)
        starts = np.array(self.members[first:last]) - low
        return np.logical_and.reduceat(fits, starts)

    def run(self, start: int, first: int, last: int, data: memoryview) -> StoredRun:
        """These rows as a run, where row 0 has the id `start`."""
        part = slice(self.members[first], self.members[last])
        offsets, sizes = self.offsets[part] - self.begins[first], self.sizes[part]
        return StoredRun(
            start + first,
            start + last,
            self.keys[first:last],
            frozenset(self.fields[part]),
            int(sizes.sum()),
            data,
            list(zip(self.names[part], offsets.tolist(), sizes.tolist(), strict=True)),
        )


def _runs_of(file: File, rows: _Rows, start: int, buffer: bytearray) -> Iterator[StoredRun]:
    num_rows = len(rows.keys)
    # Up to `done`, rows were yielded; those from there up to `first` must be encoded.
    done = first = misses = 0
    if not all(map(_PLAIN_FIELD.fullmatch, set(rows.fields))):
        first = num_rows
    while first < num_rows and misses < _MAX_MISSES:
        if not rows.are_dense[first]:
            first += 1
            continue
        last, misses = rows.piece(first), misses + 1
        begin = rows.begins[first]
        try:
            data = _read(file, begin, rows.ends[last - 1] - begin, buffer)
        except (DataError, StorageError):
            # Encoding reads it once more, and reports which payload is wrong.
            first = last
            continue
        for low, high in _stretches(rows.are_as_written(data, first, last), first):
            if done < low:
                yield StoredRun(start + done, start + low)
            part = data[rows.begins[low] - begin : rows.ends[high - 1] - begin]
            yield rows.run(start, low, high, part)
            done, misses = high, 0
        first = last
    if done < num_rows:
        yield StoredRun(start + done, start + num_rows)


def _stretches(fits: NDArray[np.bool_], first: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each stretch of rows that fit; row 0 has the number `first`."""
    edges = np.flatnonzero(fits[1:] != fits[:-1]) + 1
    bounds = [0, *edges.tolist(), len(fits)]
    for low, high in pairwise(bounds):
        if fits[low]:
            yield first + low, first + high


def _read(file: File, offset: int, length: int, buffer: bytearray) -> memoryview:
    if length > len(buffer):
        return memoryview(file.read(offset, length))
    data = memoryview(buffer)[:length]
    file.read_into(offset, data)
    return data
