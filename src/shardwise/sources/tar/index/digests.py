"""CRC-32 digests of payloads, computed while a shard is read from front to back."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import File

# Fills a buffer with the bytes from an offset on.
_ReadInto = Callable[[int, memoryview], None]
# Samples whose payloads are sorted by offset together.
_ROWS = 16384
_READ_BYTES = 4 << 20
# Concurrent reads of a remote shard.
_REMOTE_READS = 8


def payload_digests(
    file: File, index: ShardIndex, *, progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint32]]]:
    """Read all payloads of a shard; `progress` is called with the bytes read since its last call.

    Yields:
        `(field, rows, digests)`: for some rows of the index (int64 `[k]`, those that have the
        field), the CRC-32 of each payload (uint32 `[k]`). All of a field come in ascending order.
    """

    def read_into(offset: int, view: memoryview) -> None:
        if file.is_remote:
            ends = [*range(_READ_BYTES, len(view), _READ_BYTES), len(view)]
            file.read_spans(range(offset, offset + len(view), _READ_BYTES), ends, view, 0)
        else:
            file.read_into(offset, view)
        if progress is not None:
            progress(len(view))

    buffer = np.empty(_READ_BYTES * (_REMOTE_READS if file.is_remote else 1), np.uint8)
    for first in range(0, index.num_samples, _ROWS):
        rows = np.arange(first, min(first + _ROWS, index.num_samples), dtype=np.int64)
        offsets, sizes = index.locate_all(index.fields, rows)
        has_field = sizes >= 0
        starts, lengths = offsets[has_field], sizes[has_field]
        order = np.argsort(starts, kind="stable")
        found = np.empty(len(starts), np.uint32)
        found[order] = list(_walk(read_into, starts[order], lengths[order], buffer))
        digests = np.zeros(sizes.shape, np.uint32)
        digests[has_field] = found
        for field, mask, row_digests in zip(index.fields, has_field, digests, strict=True):
            yield field, rows[mask], row_digests[mask]


def _walk(
    read_into: _ReadInto, offsets: NDArray[np.int64], sizes: NDArray[np.int64], buffer: NDArray[Any]
) -> Iterator[int]:
    view = buffer.data
    ends = offsets + sizes
    # The buffer holds the bytes from `begin` to `end` of the file.
    begin = end = 0
    for row, (at, stop) in enumerate(zip(offsets.tolist(), ends.tolist(), strict=True)):
        digest = 0
        while at < stop:
            if not begin <= at < end:
                # As many of the next payloads as fit, or a part of this one.
                last = int(np.searchsorted(ends[row:], at + len(view), side="right")) + row - 1
                begin, end = at, int(ends[last]) if last >= row else at + len(view)
                read_into(begin, view[: end - begin])
            part = view[at - begin : min(stop, end) - begin]
            digest = zlib.crc32(part, digest)
            at += len(part)
        yield digest
