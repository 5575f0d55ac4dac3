"""Reading samples from indexed shards: rows to byte ranges, ranges to columns.

Keeps I6: a payload that can't be read whole, or fails its digest, is an error that names url, key,
field and offset. Imports numpy, `shardwise.errors`, columns, storage and this package.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import groupby
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn, Columns, PayloadColumn
from shardwise.errors import DataError, StorageError
from shardwise.sources.tar.read.buffers import Scratch
from shardwise.sources.tar.read.ranges import GAP_BYTES, ReadPlan, plan_reads
from shardwise.sources.tar.read.shards import ShardSet
from shardwise.storage import File, FilePool, is_local, read_files, read_payloads

__all__ = ["read_one", "read_rows"]

# So few rows of one shard cost less one by one than as arrays.
_FEW_ROWS = 6
# Payloads that are so long on average, in bytes.
_LARGE_BYTES = 16 << 10


@dataclass
class _Request:
    """Where the wanted payloads lie.

    Attributes:
        ids: int64 `[rows]`, the samples' ids.
        names: the fields.
        keys: the samples' keys.
        shard_of: int64 `[rows]`, the number of each sample's shard.
        offsets: int64 `[fields, rows]`, bytes from the shard's beginning.
        sizes: int64 `[fields, rows]`, bytes, or -1 where the sample lacks the field.
    """

    ids: NDArray[np.int64]
    names: tuple[str, ...]
    keys: list[str]
    shard_of: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]


def read_one(
    shards: ShardSet, pool: FilePool, sample: int, names: tuple[str, ...]
) -> tuple[str, list[bytes | None]] | None:
    """Read one sample by one read: its key, and the payload of each field.

    None if its fields lie too far apart for that, or something is wrong: `read_rows` says what.
    """
    shard, row = shards.locate(sample)
    index = shards.index(shard)
    found = index.locate_one(names, row)
    begin, end, total = 1 << 62, 0, 0
    for offset, size in found:
        if size > 0:
            total += size
            begin = min(begin, offset)
            end = max(end, offset + size)
    if end - begin > total + GAP_BYTES:
        return None
    try:
        data = pool.get(shards.manifest.shards[shard].url).read(begin, end - begin) if end else b""
    except (DataError, StorageError):
        return None
    values: list[bytes | None] = [
        data[offset - begin : offset - begin + size] if size > 0 else None if size else b""
        for offset, size in found
    ]
    if index.header.has_digests:
        for name, value in zip(names, values, strict=True):
            digests = index.digests(name)
            if digests is not None and zlib.crc32(value or b"") != digests.item(row):
                return None
    return index.keys.one(row), values


def read_rows(
    shards: ShardSet,
    pool: FilePool,
    scratch: Scratch,
    ids: NDArray[np.int64],
    names: tuple[str, ...],
) -> Columns:
    """Read samples, by few reads, into columns that share one buffer or have objects of their own.

    Raises:
        DataError: a payload can't be read whole, or fails its digest.
        StorageError: bytes could not be read.
    """
    request = _locate(shards, ids, names)
    sizes, shape = request.sizes.ravel(), request.sizes.shape
    plan = plan_reads(
        np.broadcast_to(request.shard_of, shape).ravel(), request.offsets.ravel(), sizes
    )
    try:
        columns = _read(shards, pool, scratch, request, plan)
    except (DataError, StorageError) as error:
        # A store was given all the time that there is: it is not asked again.
        if isinstance(error, StorageError) and not is_local(shards.manifest.shards[0].url):
            raise
        buffer = scratch.take(plan.num_bytes)
        _read_singly(shards, pool, request, plan, buffer.data)
        columns = _packed(request, plan, buffer)
    if shards.has_digests:
        _check_digests(shards, pool, request, columns)
    return Columns(ids, request.keys, dict(columns), plan.num_bytes)


def _locate(shards: ShardSet, ids: NDArray[np.int64], names: tuple[str, ...]) -> _Request:
    places = shards.places(names)
    if places is None:
        return _locate_by_shard(shards, ids, names)
    shard_of, offsets, sizes, keys = places.locate(ids)
    return _Request(ids, names, keys, shard_of, offsets, sizes)


def _locate_by_shard(shards: ShardSet, ids: NDArray[np.int64], names: tuple[str, ...]) -> _Request:
    shard_of, row_of = shards.manifest.locate(ids)
    shape = (len(names), len(ids))
    request = _Request(
        ids=ids,
        names=names,
        keys=[""] * len(ids),
        shard_of=shard_of,
        offsets=np.zeros(shape, np.int64),
        sizes=np.full(shape, -1, np.int64),
    )
    # Where the payloads of rows that are located one by one belong, and their places.
    singles: list[int] = []
    found: list[tuple[int, int]] = []
    order = np.argsort(shard_of, kind="stable")
    sorted_rows = row_of[order]
    places, rows = order.tolist(), sorted_rows.tolist()
    # Lists, not arrays: over many shards most of these runs have one row.
    start = 0
    for shard, run in groupby(shard_of[order].tolist()):
        stop = start + sum(1 for _ in run)
        index = shards.index(shard)
        if stop - start < _FEW_ROWS:
            for place, row in zip(places[start:stop], rows[start:stop], strict=True):
                request.keys[place] = index.keys[row]
                singles += range(place, len(names) * len(ids), len(ids))
                found += index.locate_one(names, row)
        else:
            wanted = sorted_rows[start:stop]
            for place, key in zip(places[start:stop], index.keys.take(wanted), strict=True):
                request.keys[place] = key
            for i, name in enumerate(names):
                if name in index.fields:
                    offsets, sizes = index.locate(name, wanted)
                    request.offsets[i, order[start:stop]] = offsets
                    request.sizes[i, order[start:stop]] = sizes
        start = stop
    if singles:
        offsets_and_sizes = np.array(found, dtype=np.int64)
        request.offsets.ravel()[singles] = offsets_and_sizes[:, 0]
        request.sizes.ravel()[singles] = offsets_and_sizes[:, 1]
    return request


def _check_digests(
    shards: ShardSet,
    pool: FilePool,
    request: _Request,
    columns: dict[str, BytesColumn],
) -> None:
    shard_of, row_of = shards.manifest.locate(request.ids)
    for row, shard in enumerate(shard_of.tolist()):
        index = shards.index(shard)
        for i, name in enumerate(request.names):
            digests, data = index.digests(name), columns[name][row]
            if digests is None or data is None:
                continue
            digest = digests.item(int(row_of[row]))
            if zlib.crc32(data) == digest:
                continue
            url, offset = shards.manifest.shards[shard].url, int(request.offsets[i, row])
            begin = int(columns[name].starts[row])
            place = columns[name].buffer.data[begin : begin + len(data)]
            if not _is_mended(pool.get(url), offset, place, digest):
                raise DataError(
                    "the payload is not the one that was indexed: its CRC-32 differs; get the "
                    "shard anew or, if it's right as it is, make its index anew with `shardwise "
                    "index --force --digests`",
                    url=url,
                    key=request.keys[row],
                    field=name,
                    offset=offset,
                    index=int(request.ids[row]),
                )


def _is_mended(file: File, offset: int, place: memoryview, digest: int) -> bool:
    """Whether a block of a cache was what was wrong, and the bytes are right now.

    A cache knows what the disk did to a block, not that it was fetched with wrong bytes.
    """
    forget = getattr(file, "forget", None)
    if forget is None or not forget(offset, len(place)):
        return False
    file.read_into(offset, place)
    return zlib.crc32(place) == digest


def _read(
    shards: ShardSet, pool: FilePool, scratch: Scratch, request: _Request, plan: ReadPlan
) -> dict[str, BytesColumn]:
    offsets, ends = plan.offsets.tolist(), plan.ends.tolist()
    wanted = []
    at = begin = 0
    for shard, stop in plan.runs():
        url = shards.manifest.shards[shard].url
        wanted.append((url, offsets[at:stop], ends[at:stop], begin))
        at, begin = stop, ends[stop - 1]
    # Large payloads are worth an object each, if that saves a copy. One that is wrong is mended
    # in its buffer.
    if plan.num_bytes >= _LARGE_BYTES * request.sizes.size and not shards.has_digests:
        lengths = request.sizes.ravel().tolist()
        values = read_payloads(pool, wanted, plan.places.tolist(), lengths)
        if values is not None:
            num = len(request.ids)
            return {
                name: PayloadColumn(values[i * num : (i + 1) * num])
                for i, name in enumerate(request.names)
            }
    buffer = scratch.take(plan.num_bytes)
    read_files(pool, wanted, buffer.data)
    return _packed(request, plan, buffer)


def _packed(request: _Request, plan: ReadPlan, buffer: NDArray[np.uint8]) -> dict[str, BytesColumn]:
    places = plan.places.reshape(request.sizes.shape)
    return {
        name: BytesColumn(buffer, places[i], request.sizes[i])
        for i, name in enumerate(request.names)
    }


def _read_singly(
    shards: ShardSet, pool: FilePool, request: _Request, plan: ReadPlan, view: memoryview
) -> None:
    """Do the reads of a plan one by one, to say which of them fails."""
    begin = 0
    for shard, offset, end in zip(
        plan.files.tolist(), plan.offsets.tolist(), plan.ends.tolist(), strict=True
    ):
        try:
            pool.get(shards.manifest.shards[shard].url).read_into(offset, view[begin:end])
        except (DataError, StorageError) as error:
            read = range(offset, offset + end - begin)
            _explain(error, shards, pool, request, read, shard=shard)
        begin = end


def _explain(
    error: DataError | StorageError,
    shards: ShardSet,
    pool: FilePool,
    request: _Request,
    read: range,
    *,
    shard: int,
) -> NoReturn:
    """Raise anew, with the sample and the field that a failed read misses first."""
    url = shards.manifest.shards[shard].url
    offsets, sizes = request.offsets, request.sizes
    is_hit = (
        (request.shard_of == shard) & (sizes > 0) & (offsets >= read.start) & (offsets < read.stop)
    )
    if type(error) is DataError:
        num_bytes = pool.get(url).stat().num_bytes
        is_cut = is_hit & (offsets + sizes > num_bytes)
        is_hit = is_cut if is_cut.any() else is_hit
    first = int(np.where(is_hit, offsets, 1 << 62).argmin())
    field, row = divmod(first, sizes.shape[1])
    key, name = request.keys[row], request.names[field]
    offset = int(offsets[field, row])
    if isinstance(error, StorageError):
        raise StorageError(
            f"{error} (while reading key {key!r}, field {name!r}, offset {offset})"
        ) from error
    reason = (
        f"the payload of {sizes[field, row]} bytes can't be read whole, though it could when the "
        f"shard was opened: {error.reason}"
    )
    raise type(error)(
        reason, url=url, key=key, field=name, offset=offset, index=int(request.ids[row])
    ) from error
