"""Media files that lie by themselves: indexed by a few ranges each, and read by ranges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.dataset.kept_arrays import KeptArrays
from shardwise.extensions.media.files.index_format import (
    BAD,
    bad_block,
    index_from_bytes,
    index_to_bytes,
)
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.ranged_files import (
    FilePlaces,
    RangedFiles,
    RangeReader,
    RecentIndexes,
)
from shardwise.sources.files.source import FilesSource
from shardwise.sources.per_process import MadeOnce
from shardwise.storage import FilePool, FileStat, is_local

# Coded frames of indexes that are kept, at 50 bytes each: 400 hours of FLAC.
_MAX_FRAMES = 10_000_000
# Files that are indexed at once: each waits for two or three answers in turn.
_NUM_READERS = 16


@dataclass(frozen=True, eq=False)
class _Indexes:
    """The stored indexes of some files, as arrays."""

    samples: NDArray[np.int64]  # ascending
    ends: NDArray[np.int64]  # of each index in `blocks`
    blocks: NDArray[np.uint8]
    stats: NDArray[np.uint8]  # JSON: bytes, time and ETag of each file


class LoneFiles(RangedFiles):
    """The media files of a `FilesSource`; satisfies `MediaFiles`.

    Each process makes the index of a file at its first use, however many samples name that file.
    """

    def __init__(self, source: FilesSource, field: str) -> None:
        super().__init__(field)
        self._source = source
        self._pool = FilePool(options=source.storage)
        self._recent: RecentIndexes[str] = RecentIndexes(_MAX_FRAMES)
        self._versions: dict[str, FileStat] = {}

    def identity(self) -> str:
        return self._source.manifest.fingerprint

    def index(self, sample: int) -> MediaIndex:
        return self._recent.get(self.place(sample)[0], lambda _: self._index(sample))

    def place(self, sample: int) -> tuple[str, str]:
        key, url, _ = self._source.file_of(sample)
        return url, key

    def has_index(self, sample: int) -> bool:
        return self.place(sample)[0] in self._recent

    def find(self, samples: Collection[int]) -> FilePlaces:
        urls, places = dict[str, int](), {}
        for sample in samples:
            url, stat = self.place(sample)[0], self._version(sample)
            self._pool.pin(url, stat)
            places[sample] = (urls.setdefault(url, len(urls)), 0, stat.num_bytes)
        return FilePlaces(self._pool, [*urls], places)

    def _index(self, sample: int) -> MediaIndex:
        with self._source.opened_file(sample) as (file, stat):
            self._versions[self.place(sample)[0]] = stat
            # The payloads of a whole file are not kept.
            return replace(index_media(RangeReader(file, stat.num_bytes)), payloads=None)

    def _version(self, sample: int) -> FileStat:
        return self._versions[self.place(sample)[0]]


class IndexedFiles(LoneFiles):
    """Lone files that are all indexed at once; the user's cache keeps indexes and versions.

    A remote file that changed is an error at its first read, since its listing has no versions.
    """

    def __init__(self, source: FilesSource, field: str, ids: NDArray[np.int64]) -> None:
        super().__init__(source, field)
        self._recent = RecentIndexes()
        self._samples = np.unique(ids)
        digest = hashlib.sha256(self._samples.astype("<i8").tobytes())
        for sample in self._samples.tolist():
            _, url, stat = source.file_of(sample)
            if stat is None and is_local(url):
                with source.opened_file(sample) as (_, stat):
                    pass
            digest.update(f"{url} {stat and list(stat)}\n".encode("utf-8", "surrogateescape"))
        self._place = KeptArrays(None, name="media", origin=f"media 2 {digest.hexdigest()}")
        self._table: MadeOnce[_Indexes] = MadeOnce()
        self._stats: MadeOnce[list[FileStat]] = MadeOnce()
        self._open_indexes()

    def __getstate__(self) -> dict[str, Any]:
        # Mapped from the cache again, if they are there.
        is_kept = any(path.exists() for path in self._place.paths)
        empty: dict[str, Any] = {"_table": MadeOnce()} if is_kept else {}
        return self.__dict__ | empty | {"_stats": MadeOnce()}

    def identity(self) -> str:
        table = self._open_indexes()
        digest = hashlib.sha256(table.samples.astype("<i8").tobytes())
        digest.update(table.ends.astype("<i8").tobytes() + table.blocks.tobytes())
        return digest.hexdigest()[:16]

    def read(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        try:
            return super().read(wanted)
        except StaleIndexError as error:
            self._place.forget()
            raise StaleIndexError(
                f"{error.reason}; its media index, in the cache, is removed: call clips() again",
                url=error.url,
            ) from error

    def has_index(self, sample: int) -> bool:  # noqa: ARG002 - all have
        return True

    def _open_indexes(self) -> _Indexes:
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
        if not any(block.startswith(BAD) for block, _ in made):
            self._place.save(asdict(table))
        return table

    def _block(self, sample: int) -> tuple[bytes, FileStat]:
        with self._source.opened_file(sample) as (file, stat):
            try:
                return index_to_bytes(index_media(RangeReader(file, stat.num_bytes))), stat
            except (MissingShardError, StaleIndexError):
                raise
            except DataError as error:
                return bad_block(error.reason), stat

    def _index(self, sample: int) -> MediaIndex:
        table, row = self._open_indexes(), int(np.searchsorted(self._samples, sample))
        begin = int(table.ends[row - 1]) if row else 0
        try:
            return index_from_bytes(table.blocks[begin : int(table.ends[row])].tobytes())
        except DataError as error:
            url, key = self.place(sample)
            raise DataError(error.reason, url=url, key=key, field=self._field) from error

    def _version(self, sample: int) -> FileStat:
        def read() -> list[FileStat]:
            return [FileStat(*each) for each in json.loads(self._open_indexes().stats.tobytes())]

        return self._stats.get(read)[int(np.searchsorted(self._samples, sample))]
