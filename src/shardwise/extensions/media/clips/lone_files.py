"""Media files that lie by themselves: indexed by a few ranges each, and read by ranges.

Their indexes are kept in the user's cache, with the version of each file. Local files that changed
since are indexed again. A remote one, whose listing has no versions, is an error when it is first
read, and the next call indexes all again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.dataset.kept_arrays import KeptArrays
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.ranged_files import (
    RangedFiles,
    RangeReader,
    RecentIndexes,
    WantedRanges,
)
from shardwise.sources.per_process import MadeOnce
from shardwise.storage import FilePool, FileStat, StorageOptions, is_local, open_file

# Files that are indexed at once: each waits for two or three answers in turn.
_NUM_READERS = 16
# A file that can't be used has the reason in place of its index, as in a sidecar.
_BAD = b"!"


@runtime_checkable
class SourceOfFiles(Protocol):
    """A source whose first field is a file of its own for each sample; see `Source`."""

    @property
    def storage(self) -> StorageOptions | None:
        """How remote files are reached."""
        ...

    def file_of(self, sample: int) -> tuple[str, str, FileStat | None]:
        """Key and URL of a sample's file, and its version where that is known."""
        ...


@dataclass(frozen=True, eq=False)
class _Indexes:
    """The stored indexes of some files, as arrays.

    Attributes:
        samples: int64 `[files]`, ascending.
        ends: int64 `[files]`, where each index ends in `blocks`.
        blocks: uint8, one behind the other.
        stats: uint8, JSON: bytes, time and ETag of each file.
    """

    samples: NDArray[np.int64]
    ends: NDArray[np.int64]
    blocks: NDArray[np.uint8]
    stats: NDArray[np.uint8]


class LoneFiles(RangedFiles):
    """The media files of a `SourceOfFiles`; satisfies `MediaFiles`."""

    def __init__(self, source: SourceOfFiles, field: str, ids: NDArray[np.int64]) -> None:
        self._source = source
        self._field = field
        self._samples = np.unique(ids)
        self._pool = FilePool(options=source.storage)
        digest = hashlib.sha256(self._samples.astype("<i8").tobytes())
        for sample in self._samples.tolist():
            _, url, stat = source.file_of(sample)
            if stat is None and is_local(url):
                stat = self._stat_of(url)
            digest.update(f"{url} {stat and list(stat)}\n".encode("utf-8", "surrogateescape"))
        self._place = KeptArrays(None, name="media", origin=f"media 2 {digest.hexdigest()}")
        self._table: MadeOnce[_Indexes] = MadeOnce()
        self._stats: MadeOnce[list[FileStat]] = MadeOnce()
        self._recent: RecentIndexes[int] = RecentIndexes()
        self._opened()

    def __getstate__(self) -> dict[str, Any]:
        # Mapped from the cache again, if they are there.
        is_kept = any(path.exists() for path in self._place.paths)
        empty: dict[str, Any] = {"_table": MadeOnce()} if is_kept else {}
        return self.__dict__ | empty | {"_stats": MadeOnce()}

    def identity(self) -> str:
        """16 hex digits of all indexes."""
        table = self._opened()
        digest = hashlib.sha256(table.samples.astype("<i8").tobytes())
        digest.update(table.ends.astype("<i8").tobytes() + table.blocks.tobytes())
        return digest.hexdigest()[:16]

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file."""
        return self._recent.get(sample, self._index)

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""
        key, url, _ = self._source.file_of(sample)
        return url, key

    def wanted(self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]) -> WantedRanges:
        """Ranges of the files of some samples."""
        urls, places = [], {}
        for number, sample in enumerate(ranges_of):
            url, stat = self.place(sample)[0], self._stat(sample)
            self._pool.pin(url, stat)
            urls.append(url)
            places[sample] = (number, 0, stat.num_bytes)
        return WantedRanges(self._pool, urls, places, ranges_of, field=self._field)

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, memoryview]]]:
        """By sample pairs of a range's start and its bytes; raises as `WantedRanges`."""
        try:
            return super().read(ranges_of)
        except StaleIndexError as error:
            self._place.forget()
            raise StaleIndexError(
                f"{error.reason}; its media index, in the cache, is removed: call clips() again",
                url=error.url,
            ) from error

    def _opened(self) -> _Indexes:
        return self._table.get(self._kept_or_made)

    def _kept_or_made(self) -> _Indexes:
        arrays = self._place.load()
        if arrays is not None:
            return _Indexes(**arrays)
        urls = [self.place(sample)[0] for sample in self._samples.tolist()]
        num_readers = 1 if all(map(is_local, urls)) else _NUM_READERS
        with ThreadPoolExecutor(num_readers) as pool:
            made = [*pool.map(self._block, self._samples.tolist())]
        ends = np.cumsum([len(block) for block, _ in made], dtype=np.int64)
        blocks = np.frombuffer(b"".join(block for block, _ in made), np.uint8)
        text = json.dumps([list(stat) for _, stat in made]).encode()
        table = _Indexes(self._samples, ends, blocks, np.frombuffer(text, np.uint8))
        # A file that can't be used may be repaired under the same name.
        if not any(block.startswith(_BAD) for block, _ in made):
            self._place.save(asdict(table))
        return table

    def _stat_of(self, url: str) -> FileStat:
        file = open_file(url, options=self._pool.options)
        try:
            return file.stat()
        finally:
            file.close()

    def _block(self, sample: int) -> tuple[bytes, FileStat]:
        key, url, stat = self._source.file_of(sample)
        file = open_file(url, options=self._pool.options)
        try:
            stat = stat or file.stat()
            file.pin(stat)
            return index_to_bytes(index_media(RangeReader(file, stat.num_bytes))), stat
        except (MissingShardError, StaleIndexError):
            raise
        except DataError as error:
            if stat is None:
                raise DataError(error.reason, url=url, key=key, field=self._field) from error
            return _BAD + error.reason.encode(), stat
        finally:
            file.close()

    def _row(self, sample: int) -> int:
        return int(np.searchsorted(self._samples, sample))

    def _index(self, sample: int) -> MediaIndex:
        table, row = self._opened(), self._row(sample)
        begin = int(table.ends[row - 1]) if row else 0
        block = table.blocks[begin : int(table.ends[row])].tobytes()
        if not block.startswith(_BAD):
            return index_from_bytes(block)
        url, key = self.place(sample)
        raise DataError(block[1:].decode(), url=url, key=key, field=self._field)

    def _stat(self, sample: int) -> FileStat:
        def read() -> list[FileStat]:
            return [FileStat(*each) for each in json.loads(self._opened().stats.tobytes())]

        return self._stats.get(read)[self._row(sample)]
