"""Reading samples from indexed shards: ids to byte ranges, byte ranges to columns.

A payload that can't be read whole, or fails its digest, is an error that names url, key, field and
offset.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, product

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Columns, PayloadColumn
from shardwise.base.errors import DataError, StorageError
from shardwise.sources.tar.read.shards import GAP_BYTES, ReadPlan, ShardSet, plan_reads
from shardwise.storage import File, FilePool, PoolRanges, is_local, read_files, read_payloads

# Above 16 MiB reads are rare, and each gets its own memory.
_MAX_BYTES = 16 << 20
_MIN_BYTES = 64 << 10


class ReusedBuffer(threading.local):
    """One buffer per thread: the system zeroes and maps fresh pages, which costs more than reading.

    Arrays and memoryviews over a buffer hold a reference to it each. It is reused only when none
    is left, so that columns that a caller keeps do not change.
    """

    def __init__(self) -> None:
        self._buffer: NDArray[np.uint8] | None = None

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory of this size, uint8 `[num_bytes]`, with undefined content."""
        if num_bytes > _MAX_BYTES:
            return np.empty(num_bytes, np.uint8)
        buffer = self._buffer
        # Three references: the attribute, the local variable and the argument of getrefcount.
        if buffer is None or len(buffer) < num_bytes or sys.getrefcount(buffer) > 3:
            size = max(_MIN_BYTES, 1 << (num_bytes - 1).bit_length())
            buffer = self._buffer = np.empty(size, np.uint8)
        return buffer[:num_bytes]


# Below 6 rows of a shard, ints cost less than numpy calls on arrays.
_FEW_ROWS = 6
# Payloads of 16 KiB or more on average are separate objects, which saves a copy of the bytes.
_LARGE_BYTES = 16 << 10


@dataclass(frozen=True)
class _Request:
    """The payloads of some samples and the reads that fill a buffer with them.

    Ids, keys and numbers of shards are `[rows]`, offsets in the shard and sizes `[fields, rows]`;
    a size is -1 where the sample lacks the field. The plan's payloads are those of `offsets`, row
    by row.
    """

    ids: NDArray[np.int64]
    names: tuple[str, ...]
    keys: list[str]
    shard_of: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    plan: ReadPlan

    def columns(self, buffer: NDArray[np.uint8]) -> dict[str, BytesColumn]:
        starts = self.plan.starts.reshape(self.sizes.shape)
        return {
            name: BytesColumn(buffer, starts[i], self.sizes[i]) for i, name in enumerate(self.names)
        }


class Reader:
    """Reads samples of the opened shards of a dataset. Any thread may call its methods."""

    def __init__(self, shards: ShardSet, pool: FilePool) -> None:
        self.shards = shards
        self._pool = pool
        self._buffer = ReusedBuffer()

    def read_one(
        self, sample: int, names: tuple[str, ...]
    ) -> tuple[str, list[bytes | None]] | None:
        """One sample by one read: key, payload per field; None where `read` must do it or raise."""
        shard, row = self.shards.locate(sample)
        index = self.shards.index(shard)
        payloads = index.locate_one(names, row)
        begin, end, total = 1 << 62, 0, 0
        for offset, size in payloads:
            if size > 0:
                total += size
                begin = min(begin, offset)
                end = max(end, offset + size)
        if end - begin > total + GAP_BYTES:
            return None
        try:
            data = self.file(shard).read(begin, end - begin) if end else b""
        except (DataError, StorageError):
            return None
        values: list[bytes | None] = [
            data[offset - begin : offset - begin + size] if size > 0 else None if size else b""
            for offset, size in payloads
        ]
        if index.header.has_digests:
            for name, value in zip(names, values, strict=True):
                digests = index.digests(name)
                if digests is not None and zlib.crc32(value or b"") != digests.item(row):
                    return None
        return index.keys.one(row), values

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None
    ) -> Iterable[PoolRanges]:
        shard_of, _ = self.shards.manifest.locate(ids)
        # The caller waits for a shard to be opened: one at a time.
        unopened = [s for s in np.unique(shard_of).tolist() if not self.shards.is_opened(s)][1:]
        ids = ids[~np.isin(shard_of, unopened)] if unopened else ids
        names = self.shards.fields if fields is None else fields
        request = self._locate(ids, names, keyed=False)
        return [(self._pool, request.plan.by_url(self.shards.manifest.urls))]

    def read(self, ids: NDArray[np.int64], names: tuple[str, ...]) -> Columns:
        """Read samples by few reads: columns share a buffer, or hold an object per payload."""
        request = self._locate(ids, names)
        try:
            columns = self._read_together(request)
        except (DataError, StorageError) as error:
            # A store has used up its retries: it is not asked again.
            if isinstance(error, StorageError) and not is_local(self._url(0)):
                raise
            columns = self._read_singly(request)
        if self.shards.has_digests:
            self._check_digests(request, columns)
        return Columns(ids, request.keys, dict(columns), request.plan.num_bytes)

    def _url(self, shard: int) -> str:
        return self.shards.manifest.urls[shard]

    def file(self, shard: int) -> File:
        """The open file of one shard, by its number."""
        return self._pool.get(self._url(shard))

    def _locate(
        self, ids: NDArray[np.int64], names: tuple[str, ...], *, keyed: bool = True
    ) -> _Request:
        table = self.shards.offset_table(names)
        shard_of, offsets, sizes, keys = (
            self._locate_by_shard(ids, names) if table is None else table.locate(ids, keyed=keyed)
        )
        files = np.empty_like(sizes)
        files[:] = shard_of
        plan = plan_reads(files.ravel(), offsets.ravel(), sizes.ravel())
        return _Request(ids, names, keys, shard_of, offsets, sizes, plan)

    def _locate_by_shard(
        self, ids: NDArray[np.int64], names: tuple[str, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[str]]:
        """As `OffsetTable.locate`, from the shards' own indexes."""
        shard_of, row_of = self.shards.manifest.locate(ids)
        offsets = np.zeros((len(names), len(ids)), np.int64)
        sizes = np.full_like(offsets, -1)
        keys = [""] * len(ids)
        order = np.argsort(shard_of, kind="stable").tolist()
        shards, rows = shard_of.tolist(), row_of.tolist()
        # Flat positions and payloads of rows that are located one by one.
        positions: list[int] = []
        payloads: list[tuple[int, int]] = []
        # Lists, not arrays: over many shards most groups have one row.
        for shard, group in groupby(order, key=shards.__getitem__):
            columns = list(group)
            index = self.shards.index(shard)
            if len(columns) < _FEW_ROWS:
                for column in columns:
                    keys[column] = index.keys.one(rows[column])
                    positions += range(column, sizes.size, len(ids))
                    payloads += index.locate_one(names, rows[column])
            else:
                at = np.array(columns)
                for column, key in zip(columns, index.keys.take(row_of[at]), strict=True):
                    keys[column] = key
                offsets[:, at], sizes[:, at] = index.locate_all(names, row_of[at])
        if positions:
            located = np.array(payloads, dtype=np.int64).T
            offsets.ravel()[positions], sizes.ravel()[positions] = located
        return shard_of, offsets, sizes, keys

    def _read_together(self, request: _Request) -> dict[str, BytesColumn]:
        plan = request.plan
        ranges = plan.by_url(self.shards.manifest.urls)
        # A shard with digests needs a buffer, as a wrong payload is read again in place.
        if plan.num_bytes >= _LARGE_BYTES * request.sizes.size and not self.shards.has_digests:
            lengths = request.sizes.ravel().tolist()
            values = read_payloads(self._pool, ranges, plan.starts.tolist(), lengths)
            if values is not None:
                num = len(request.ids)
                return {
                    name: PayloadColumn(values[i * num : (i + 1) * num])
                    for i, name in enumerate(request.names)
                }
        buffer = self._buffer.take(plan.num_bytes)
        read_files(self._pool, ranges, buffer.data)
        return request.columns(buffer)

    def _read_singly(self, request: _Request) -> dict[str, BytesColumn]:
        """Read the payloads of a request one by one, to report which of them fails."""
        buffer = self._buffer.take(request.plan.num_bytes)
        starts = request.plan.starts.reshape(request.sizes.shape)
        # Row by row in the order of the shards.
        order = np.lexsort((request.offsets.max(axis=0, initial=0), request.shard_of))
        for row, (i, name) in product(order.tolist(), enumerate(request.names)):
            shard, size = int(request.shard_of[row]), int(request.sizes[i, row])
            if size <= 0:
                continue
            offset, start = int(request.offsets[i, row]), int(starts[i, row])
            try:
                self.file(shard).read_into(offset, buffer.data[start : start + size])
            except StorageError as error:
                key = request.keys[row]
                raise StorageError(
                    f"{error} (while reading key {key!r}, field {name!r}, offset {offset})"
                ) from error
            except DataError as error:
                raise type(error)(
                    f"the payload of {size} bytes can't be read whole, though it could when the "
                    f"shard was opened: {error.reason}",
                    url=self._url(shard),
                    key=request.keys[row],
                    field=name,
                    offset=offset,
                    index=int(request.ids[row]),
                ) from error
        return request.columns(buffer)

    def _check_digests(self, request: _Request, columns: dict[str, BytesColumn]) -> None:
        shard_of, row_of = self.shards.manifest.locate(request.ids)
        for row, shard in enumerate(shard_of.tolist()):
            index = self.shards.index(shard)
            for i, name in enumerate(request.names):
                digests, data = index.digests(name), columns[name][row]
                if digests is None or data is None:
                    continue
                digest = digests.item(int(row_of[row]))
                if zlib.crc32(data) == digest:
                    continue
                offset = int(request.offsets[i, row])
                begin = int(columns[name].starts[row])
                payload = columns[name].buffer.data[begin : begin + len(data)]
                if not _refetch(self.file(shard), offset, payload, digest):
                    raise DataError(
                        "the payload is not the one that was indexed: its CRC-32 differs; get the "
                        "shard anew or, if it's right as it is, make its index anew with "
                        "`shardwise index --force --digests`",
                        url=self._url(shard),
                        key=request.keys[row],
                        field=name,
                        offset=offset,
                        index=int(request.ids[row]),
                    )


def _refetch(file: File, offset: int, payload: memoryview, digest: int) -> bool:
    """Read a wrong payload again where a cache may hold it; returns whether its digest fits then.

    A cache's checksum shows what the disk did to a block, not that wrong bytes were fetched.
    """
    forget = getattr(file, "forget", None)
    if forget is None or not forget(offset, len(payload)):
        return False
    file.read_into(offset, payload)
    return zlib.crc32(payload) == digest
