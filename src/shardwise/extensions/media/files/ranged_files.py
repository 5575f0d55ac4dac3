"""Media files whose bytes are read by ranges: of shards, and files that lie by themselves."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.sources.per_process import PerProcess
from shardwise.sources.tar.read.shards import plan_reads
from shardwise.storage import File, FilePool, PoolRanges, read_files

K = TypeVar("K", bound=Hashable)

# Coded frames of parsed indexes that are kept in memory, at 50 bytes each.
_MAX_FRAMES = 1_000_000


class FilePlaces(NamedTuple):
    """The files of samples; by sample the number of its URL, the first byte there, and the size."""

    pool: FilePool
    urls: Sequence[str]
    places: Mapping[int, tuple[int, int, int]]


class RangedFiles(ABC):
    """Media files of samples, for one field, read by ranges."""

    def __init__(self, field: str) -> None:
        self._field = field

    @abstractmethod
    def find(self, samples: Collection[int]) -> FilePlaces:
        """Find the files of some samples."""

    def read(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        """Read ranges (start, stop), in order and apart, by sample; remote ones all at once."""
        found = self.find(wanted)
        owners, parts = self._list_parts(found, wanted)
        plan = plan_reads(*parts)
        buffer = np.empty(plan.num_bytes, np.uint8).data
        read_files(found.pool, plan.by_url(found.urls), buffer)
        read: dict[int, list[tuple[int, memoryview]]] = {sample: [] for sample in wanted}
        at = zip(owners, parts[2].tolist(), plan.starts.tolist(), strict=True)
        for (sample, start), length, begin in at:
            read[sample].append((start, buffer[begin : begin + length].toreadonly()))
        return iter(read.items())

    def ranges(self, wanted: Mapping[int, Sequence[tuple[int, int]]]) -> Iterable[PoolRanges]:
        """The ranges that `read` fetches."""
        found = self.find(wanted)
        _, parts = self._list_parts(found, wanted)
        return [(found.pool, plan_reads(*parts).by_url(found.urls))]

    def _list_parts(
        self, found: FilePlaces, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        """Sample and start of each range; its file, offset and bytes, int64 `[3, ranges]`."""
        owners: list[tuple[int, int]] = []
        parts: list[tuple[int, int, int]] = []
        for sample, ranges in wanted.items():
            file, base, size = found.places[sample]
            for start, stop in ranges:
                if not 0 <= start <= stop <= size:
                    raise DataError(
                        f"bytes {start} to {stop} are needed of a file of {max(0, size)}",
                        url=found.urls[file], field=self._field, offset=base,
                    )  # fmt: skip
                owners.append((sample, start))
                parts.append((file, base + start, stop - start))
        return owners, np.array(parts, np.int64).reshape(-1, 3).T


class RangeReader:
    """A file of storage, to be read by the parsers of media."""

    def __init__(self, file: File, num_bytes: int) -> None:
        self._file = file
        self.num_bytes = num_bytes

    def holds(self, start: int, stop: int) -> bool:
        return start == stop

    def read(self, start: int, stop: int) -> bytes:
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

    def __contains__(self, key: object) -> bool:
        return key in self._indexes

    def get(self, key: K, make: Callable[[K], MediaIndex]) -> MediaIndex:
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
