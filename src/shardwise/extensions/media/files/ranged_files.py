"""Media files whose bytes are read by ranges: of shards, and files that lie by themselves."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.sources.per_process import PerProcess
from shardwise.sources.tar.read.ranges import plan_reads
from shardwise.storage import File, FilePool, read_files

K = TypeVar("K", bound=Hashable)

# Coded frames of parsed indexes that are kept in memory, at 50 bytes each.
_MAX_FRAMES = 1_000_000


def read_ranges(
    pool: FilePool,
    urls: Sequence[str],
    places: Mapping[int, tuple[int, int, int]],
    ranges_of: Mapping[int, Sequence[tuple[int, int]]],
    *,
    field: str,
) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
    """Read ranges of the media files of some samples; all remote ones are in flight at once.

    `places` has by sample the number of its file's URL, and its start and size in that file. Each
    sample is yielded with pairs of a range's start and its bytes.
    """
    owners: list[tuple[int, int]] = []
    # The file, offset and bytes of each range.
    parts: list[tuple[int, int, int]] = []
    for sample, ranges in ranges_of.items():
        file, base, size = places[sample]
        for start, stop in ranges:
            if not 0 <= start <= stop <= size:
                raise DataError(
                    f"bytes {start} to {stop} are needed of a file of {max(0, size)}",
                    url=urls[file], field=field, offset=base,
                )  # fmt: skip
            owners.append((sample, start))
            parts.append((file, base + start, stop - start))
    plan = plan_reads(*np.array(parts, np.int64).reshape(-1, 3).T)
    buffer = np.empty(plan.num_bytes, np.uint8).data
    read_files(pool, plan.by_url(urls), buffer)
    found: dict[int, list[tuple[int, memoryview]]] = {sample: [] for sample in ranges_of}
    for (sample, start), (*_, length), at in zip(owners, parts, plan.starts.tolist(), strict=True):
        found[sample].append((start, buffer[at : at + length].toreadonly()))
    yield from found.items()


class RangeReader:
    """A file of storage, to be read by the parsers of media."""

    def __init__(self, file: File, num_bytes: int) -> None:
        self._file = file
        self.num_bytes = num_bytes

    def holds(self, start: int, stop: int) -> bool:
        """False, except for an empty range."""
        return start == stop

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`."""
        return self._file.read(start, stop - start)


class RecentIndexes(Generic[K]):
    """The parsed indexes that were used last, of `max_frames` coded frames; it pickles empty."""

    def __init__(self, max_frames: int = _MAX_FRAMES) -> None:
        self._max_frames = max_frames
        self._lock: PerProcess[threading.Lock] = PerProcess()
        self._indexes: OrderedDict[K, MediaIndex] = OrderedDict()
        self._num_frames = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return RecentIndexes, (self._max_frames,)

    def get(self, key: K, make: Callable[[K], MediaIndex]) -> MediaIndex:
        """The index of a file; `make` is called with its key where it is not kept."""
        with self._lock.get(threading.Lock):
            known = self._indexes.get(key)
        if known is not None:
            return known
        index = make(key)
        with self._lock.get(threading.Lock):
            if self._indexes.setdefault(key, index) is index:
                self._num_frames += _num_frames(index)
            while self._num_frames > self._max_frames and len(self._indexes) > 1:
                self._num_frames -= _num_frames(self._indexes.popitem(last=False)[1])
        return index


def _num_frames(index: MediaIndex) -> int:
    return sum(len(track.columns.pts) for track in index.tracks)
