"""Samples that stand in a shard as `TarWriter` would write them: copied with their headers.

Every header and every padding is held against what the writer would write. What differs in a byte
is left to the writer, so that copies are the same shards as those that are encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError, StorageError
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.read.reader import Reader
from shardwise.sources.tar.scan.headers import BLOCK, round_up
from shardwise.sources.tar.write.header import header
from shardwise.storage import File

__all__ = ["StoredRun", "stored_runs"]

# 1 MiB stays in the processor's cache between being read and being written.
_PIECE_BYTES = 1 << 20
# Numbers that are located at a time, rows times fields: 512 KiB.
_MAX_CELLS = 1 << 16
# After this many pieces of which nothing fits, another program wrote the shard.
_MAX_MISSES = 8
_PADDING = bytes(BLOCK)
# Names that `encode_sample` takes for certain; it is asked about all others.
_PLAIN_KEY = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]*/)*[A-Za-z0-9][A-Za-z0-9_-]*")
_PLAIN_FIELD = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Samples that stand one behind the other in a shard.

    Attributes:
        start: the first sample's id.
        keys: their keys; none where the samples must be encoded.
        fields: the fields that any of them has.
        num_bytes: bytes of their payloads.
        data: their members, headers and paddings included; overwritten when the next run is asked
            for.
        stop: behind the last sample's id.
    """

    start: int
    stop: int
    keys: Sequence[str] = ()
    fields: frozenset[str] = frozenset()
    num_bytes: int = 0
    data: bytes | memoryview = b""


def stored_runs(reader: Reader, start: int, stop: int) -> Iterator[StoredRun]:
    """Yield samples `[start, stop)` in order, as runs that may be copied or must be encoded.

    Args:
        reader: of local shards without digests.
        start: the first sample's id.
        stop: behind the last one's.
    """
    buffer = bytearray(_PIECE_BYTES)
    while start < stop:
        shard, row = reader.shards.locate(start)
        end = min(stop, int(reader.shards.manifest.ends[shard]))
        try:
            index = reader.shards.index(shard)
        except DataError:
            # Encoding says it of each sample.
            yield StoredRun(start, end)
        else:
            num_rows = max(1, _MAX_CELLS // max(1, len(index.fields)))
            end = min(end, start + num_rows)
            file, rows = reader.file(shard), _Rows.of(index, row, row + end - start)
            yield from _runs_of(file, rows, start, buffer)
        start = end


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the members of some neighbours in a shard lie, if they stand as they are written.

    Attributes:
        keys: the samples' keys.
        fields: the shard's fields, sorted.
        sizes: int64 `[fields, rows]`, -1 where a sample lacks the field.
        begins: where the first header of each sample begins, `[rows]`.
        ends: where the last padding of each ends, `[rows]`.
        are_dense: whether nothing but the members lies between, `[rows]`.
    """

    keys: list[str]
    fields: tuple[str, ...]
    sizes: NDArray[np.int64]
    begins: list[int]
    ends: list[int]
    are_dense: list[bool]

    @classmethod
    def of(cls, index: ShardIndex, first: int, stop: int) -> _Rows:
        """The rows `[first, stop)` of a shard."""
        rows, fields = np.arange(first, stop, dtype=np.int64), tuple(sorted(index.fields))
        located = np.array([index.locate(name, rows) for name in fields], np.int64)
        offsets, sizes = located[:, 0], located[:, 1]
        is_there = sizes >= 0
        taken = np.where(is_there, BLOCK + -(-sizes // BLOCK) * BLOCK, 0)
        begins = np.where(is_there, offsets - BLOCK, 1 << 62).min(axis=0)
        ends = np.where(is_there, offsets - BLOCK + taken, 0).max(axis=0)
        are_dense = (begins >= 0) & (ends - begins == taken.sum(axis=0))
        return cls(
            index.keys.take(rows),
            fields,
            sizes,
            begins.tolist(),
            ends.tolist(),
            are_dense.tolist(),
        )

    def piece(self, first: int) -> int:
        """Behind the last row that is read together with this one."""
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

    def are_as_written(self, data: bytes | bytearray, first: int, last: int) -> list[bool]:
        """Whether each of these rows is what the writer writes, byte by byte but the payloads."""
        begin, sizes = self.begins[first], self.sizes[:, first:last].T.tolist()
        return [
            _PLAIN_KEY.fullmatch(self.keys[row]) is not None
            and self._is_as_written(data, self.begins[row] - begin, row, sizes[row - first])
            for row in range(first, last)
        ]

    def _is_as_written(self, data: bytes | bytearray, at: int, row: int, sizes: list[int]) -> bool:
        key = self.keys[row]
        for field, size in zip(self.fields, sizes, strict=True):
            if size < 0:
                continue
            if not data.startswith(header(f"{key}.{field}", size), at):
                return False
            end = at + BLOCK + size
            at += BLOCK + round_up(size)
            if not data.startswith(_PADDING[: at - end], end):
                return False
        return True

    def run(self, start: int, first: int, last: int, data: memoryview) -> StoredRun:
        """These rows as a run, where row 0 has the id `start`."""
        sizes = self.sizes[:, first:last]
        there = np.flatnonzero((sizes >= 0).any(axis=1)).tolist()
        return StoredRun(
            start + first,
            start + last,
            self.keys[first:last],
            frozenset(self.fields[i] for i in there),
            int(sizes.sum(where=sizes > 0)),
            data,
        )


def _runs_of(file: File, rows: _Rows, start: int, buffer: bytearray) -> Iterator[StoredRun]:
    """Yield the runs of rows of which the first has the id `start`."""
    num_rows = len(rows.keys)
    # Up to `done`, rows were yielded; those behind it, up to `first`, must be encoded.
    done = first = misses = 0
    if not all(map(_PLAIN_FIELD.fullmatch, rows.fields)):
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
            # Encoding reads it once more, and says which payload is the wrong one.
            first = last
            continue
        fit = rows.are_as_written(data, first, last)
        for is_copied, group in groupby(range(first, last), lambda row: fit[row - first]):  # noqa: B023 - used at once
            if is_copied:
                members = list(group)
                low, high = members[0], members[-1] + 1
                if done < low:
                    yield StoredRun(start + done, start + low)
                part = memoryview(data)[rows.begins[low] - begin : rows.ends[high - 1] - begin]
                yield rows.run(start, low, high, part)
                done, misses = high, 0
        first = last
    if done < num_rows:
        yield StoredRun(start + done, start + num_rows)


def _read(file: File, offset: int, length: int, buffer: bytearray) -> bytes | bytearray:
    """Bytes of a file, in the buffer where they fit."""
    if length > len(buffer):
        return file.read(offset, length)
    file.read_into(offset, memoryview(buffer)[:length])
    return buffer
