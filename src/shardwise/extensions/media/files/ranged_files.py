"""Media files whose bytes are read by ranges: of shards, and files that lie by themselves."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.sources.per_process import PerProcess
from shardwise.sources.tar.read.ranges import plan_reads
from shardwise.storage import File, FilePool, PoolRanges, read_files

K = TypeVar("K", bound=Hashable)

# Coded frames of parsed indexes that are kept in memory, at 50 bytes each.
_MAX_FRAMES = 1_000_000


class WantedRanges:
    """Ranges of the media files of some samples; all remote ones are in flight at once.

    Args:
        pool: opens the files.
        urls: of the files.
        places: by sample the number of its file's URL, and where in it its bytes begin, and how
            many they are.
        ranges_of: by sample the ranges (start, stop), in order and apart.
        field: for errors.

    Raises:
        DataError: a range lies beyond its file.
    """

    def __init__(
        self,
        pool: FilePool,
        urls: Sequence[str],
        places: Mapping[int, tuple[int, int, int]],
        ranges_of: Mapping[int, Sequence[tuple[int, int]]],
        *,
        field: str,
    ) -> None:
        self._pool = pool
        self._samples = list(ranges_of)
        self._owners: list[tuple[int, int]] = []
        # By range its file, offset and bytes.
        self._parts: list[tuple[int, int, int]] = []
        for sample, ranges in ranges_of.items():
            file, base, size = places[sample]
            for start, stop in ranges:
                if not 0 <= start <= stop <= size:
                    raise DataError(
                        f"bytes {start} to {stop} are needed of a file of {max(0, size)}",
                        url=urls[file], field=field, offset=base,
                    )  # fmt: skip
                self._owners.append((sample, start))
                self._parts.append((file, base + start, stop - start))
        self._plan = plan_reads(*np.array(self._parts, np.int64).reshape(-1, 3).T)
        self._reads = self._plan.by_url(urls)

    @property
    def reads(self) -> list[PoolRanges]:
        """What `read` fetches."""
        return [(self._pool, self._reads)]

    def read(self) -> dict[int, list[tuple[int, memoryview]]]:
        """By sample pairs of a range's start and its bytes.

        Raises:
            DataError: a file is not the one that was indexed, or ends before a range does.
            StorageError: bytes could not be read.
        """
        buffer = np.empty(self._plan.num_bytes, np.uint8).data
        read_files(self._pool, self._reads, buffer)
        found: dict[int, list[tuple[int, memoryview]]] = {sample: [] for sample in self._samples}
        starts = self._plan.starts.tolist()
        for (sample, start), (*_, length), at in zip(
            self._owners, self._parts, starts, strict=True
        ):
            found[sample].append((start, buffer[at : at + length].toreadonly()))
        return found


class RangedFiles(ABC):
    """Media files of samples that are read by ranges."""

    @abstractmethod
    def wanted(self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]) -> WantedRanges:
        """Locate ranges of the files of some samples."""

    def reads(self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]) -> list[PoolRanges]:
        """What `read` fetches."""
        return self.wanted(ranges_of).reads

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, memoryview]]]:
        """By sample pairs of a range's start and its bytes; raises as `WantedRanges`."""
        return self.wanted(ranges_of).read()


class RangeReader:
    """A file of storage as the parsers of media read it."""

    def __init__(self, file: File, num_bytes: int) -> None:
        self._file = file
        self.num_bytes = num_bytes

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`."""
        return self._file.read(start, stop - start)


class RecentIndexes(Generic[K]):
    """The parsed indexes that were used last; any thread may ask. It pickles empty.

    Args:
        max_frames: coded frames of the indexes that are kept together; one is kept in any case.
    """

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
