"""The layout that MDS shards and LitData chunks share.

    count: uint32 | offsets: uint32 [count + 1] | ... | records

A record is the sizes (uint32) of its fields without a fixed size, then the fields.
All numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn
from shardwise.base.errors import DataError
from shardwise.extensions.formats.records.forms import BadRowError
from shardwise.extensions.formats.records.source import RecordFields, RecordShard
from shardwise.sources.manifest import Shard
from shardwise.storage import File

_U32 = np.dtype("<u4")


def open_file_records(file: File, found: int, shard: Shard) -> RecordShard:
    """The positions of the records of a file of `found` bytes, from its header."""
    if found != shard.num_bytes:
        raise DataError(
            f"the file has {found} bytes; index.json says {shard.num_bytes}: was it cut or "
            "replaced?",
            url=shard.url,
            offset=min(found, shard.num_bytes),
        )
    return RecordShard(*_bounds(partial(file.read, 0), found, shard))


def open_content(content: NDArray[np.uint8], shard: Shard) -> RecordShard:
    """The records of a shard whose bytes are all in memory."""
    return RecordShard(*_bounds(lambda length: content[:length], len(content), shard), content)


def _bounds(
    read: Callable[[int], bytes | NDArray[np.uint8]], num_bytes: int, shard: Shard
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    length = 4 * (shard.num_samples + 2)
    if length > num_bytes:
        raise DataError(
            f"{num_bytes} bytes can't hold the {shard.num_samples} samples of index.json",
            url=shard.url,
        )
    numbers = np.frombuffer(read(length), _U32).astype(np.int64)
    count, offsets = numbers[0], numbers[1:]
    if count != shard.num_samples:
        raise DataError(
            f"its header says {count} samples, index.json {shard.num_samples}: is it another "
            "shard?",
            url=shard.url,
            offset=0,
        )
    is_wrong = np.append(np.diff(offsets) < 0, offsets[-1] > num_bytes)
    if length > offsets[0]:
        is_wrong[0] = True
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise DataError(
            f"the offset of record {row} is damaged: {offsets[row]} in {num_bytes} bytes",
            url=shard.url,
            offset=4 * (row + 1),
        )
    return offsets[:-1], offsets[1:]


def cut_records(records: RecordFields, sizes: Sequence[int | None]) -> list[BytesColumn]:
    """The fields of records, whose sizes in bytes are None where each record has the size."""
    num_rows, num_sizes = len(records.starts), sum(size is None for size in sizes)
    short = np.flatnonzero(records.lengths < 4 * num_sizes)
    if len(short):
        row = int(short[0])
        raise BadRowError(
            row,
            f"the record has {records.lengths[row]} bytes, and the sizes of its {num_sizes} "
            f"fields alone {4 * num_sizes}",
        )
    heads = np.empty((num_rows, 4 * num_sizes), np.uint8)
    head = BytesColumn(records.buffer, records.starts, np.full(num_rows, 4 * num_sizes))
    if num_sizes:
        head.copy_rows(heads)
    stored = iter(heads.view(_U32).astype(np.int64).T)
    lengths = [
        next(stored) if size is None else np.full(num_rows, size, np.int64) for size in sizes
    ]
    at = records.starts + 4 * num_sizes
    columns = []
    for each in lengths:
        columns.append(BytesColumn(records.buffer, at, each))
        at = at + each
    wrong = np.flatnonzero(at != records.starts + records.lengths)
    if len(wrong):
        row = int(wrong[0])
        raise BadRowError(
            row,
            f"the record has {records.lengths[row]} bytes, and its fields "
            f"{at[row] - records.starts[row]}: it is damaged",
        )
    return columns
