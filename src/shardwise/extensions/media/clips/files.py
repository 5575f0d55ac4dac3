"""Media files of a dataset's samples, with their indexes: of sources that know them, and others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import values_of
from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.lone_files import IndexedFiles, LoneFiles
from shardwise.extensions.media.files.coded_frames import joined_ranges
from shardwise.extensions.media.files.index_format import bad_block, index_from_bytes, media_block
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.sources.files.source import FilesSource
from shardwise.sources.protocol import HasMediaFiles, Source, ranges_of, url_in
from shardwise.storage import PoolRanges

# Samples that are indexed at the first use: reading 10,000 clips of 1 MB takes a minute.
_MAX_FILES = 10_000


class MediaFiles(Protocol):
    """The media files of a field, by the samples' ids in the source; pickles without open files."""

    def identity(self) -> str:
        """A text that changes with the indexes."""

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file."""

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""

    def read(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        """Yield each sample with pairs of a range's start and its bytes."""

    def has_index(self, sample: int) -> bool:
        """Whether `index` makes no request to a store."""

    def ranges(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterable[PoolRanges] | None:
        """The ranges that `read` fetches, as far as they are known."""


class HeldRanges:
    """A sample's file with some ranges, and their starts, in memory; it reads other ranges."""

    def __init__(
        self, files: MediaFiles, sample: int, num_bytes: int, held: list[tuple[int, memoryview]]
    ) -> None:
        self.num_bytes = num_bytes
        self._files, self._sample, self._held = files, sample, held

    def holds(self, start: int, stop: int) -> bool:
        return any(begin <= start and stop <= begin + len(data) for begin, data in self._held)

    def read(self, start: int, stop: int) -> memoryview:
        if not self.holds(start, stop):
            ((_, parts),) = self._files.read({self._sample: [(start, stop)]})
            self._held.extend(parts)
        return next(
            data[start - begin : stop - begin]
            for begin, data in self._held
            if begin <= start and stop <= begin + len(data)
        )


# The sample, index and ranges of a part of a file.
Part: TypeAlias = tuple[int, MediaIndex, Sequence[tuple[int, int]]]


def ranges_by_sample(wanted: Iterable[Part]) -> dict[int, list[tuple[int, int]]]:
    """The ranges of parts by sample; parts of one file share what they have in common."""
    needed: dict[int, list[tuple[int, int]]] = {}
    for sample, _, ranges in wanted:
        if ranges:
            needed.setdefault(sample, []).extend(ranges)
    return {sample: joined_ranges(ranges) for sample, ranges in needed.items()}


def hold_ranges(files: MediaFiles, wanted: Sequence[Part]) -> tuple[list[HeldRanges], int]:
    """Read parts of the files of samples, all remote ones at once, and count their bytes."""
    read = dict(files.read(ranges_by_sample(wanted)))
    return [
        HeldRanges(files, sample, index.num_bytes, _of_part(read.get(sample, []), ranges))
        for sample, index, ranges in wanted
    ], sum(len(data) for parts in read.values() for _, data in parts)


def _of_part(
    held: list[tuple[int, memoryview]], ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, memoryview]]:
    """What one part of a file looks through: a file may have the parts of a whole batch."""
    return [each for each in held if any(0 <= s - each[0] < len(each[1]) for s, _ in ranges)]


def files_of(
    source: Source, field: str, ids: NDArray[np.int64], *, at_use: bool = False
) -> MediaFiles:
    """The media files of a source; `at_use` leaves indexes of lone files to their first use."""
    own = having(source, HasMediaFiles)
    if own is not None:
        files: MediaFiles = own.media_files(field)
        return files
    if "%" in field:
        raise ValueError(f"clips({field!r}): numbered pictures are members of tar shards")
    if isinstance(source, FilesSource) and field == source.fields[0]:
        return LoneFiles(source, field) if at_use else IndexedFiles(source, field, ids)
    if len(ids) > _MAX_FILES:
        raise ValueError(
            f"clips() of {len(ids)} samples of {type(source).__name__}: up to {_MAX_FILES} are "
            "indexed at the first use; write them to tar shards with TarWriter(media=True), which "
            "keeps the index beside them"
        )
    return StoredFiles(source, field, ids)


class StoredFiles:
    """Files of a source without media indexes: each is read whole, now once for its index."""

    def __init__(self, source: Source, field: str, ids: NDArray[np.int64]) -> None:
        self._source = source
        self._field = field
        self._blocks: dict[int, bytes] = {}
        for sample in np.unique(ids).tolist():
            data = self._payload(sample)
            try:
                self._blocks[sample] = b"" if data is None else media_block(data)
            except DataError as error:
                self._blocks[sample] = bad_block(error.reason)

    def identity(self) -> str:
        digest = hashlib.sha256()
        for sample, block in self._blocks.items():
            digest.update(b"%d %d " % (sample, len(block)) + block)
        return digest.hexdigest()[:16]

    def index(self, sample: int) -> MediaIndex:
        block = self._blocks[sample] or bad_block(f"the sample has no {self._field!r}")
        try:
            return index_from_bytes(block)
        except DataError as error:
            url, key = self.place(sample)
            raise DataError(error.reason, url=url, key=key, field=self._field) from error

    def place(self, sample: int) -> tuple[str, str]:
        ids = np.array([sample], np.int64)
        return url_in(self._source, sample), str(self._source.read(ids, ()).keys[0])

    def read(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        for sample in wanted:
            data = self._payload(sample)
            yield sample, [] if data is None else [(0, memoryview(data))]

    def has_index(self, sample: int) -> bool:
        return sample in self._blocks

    def ranges(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterable[PoolRanges] | None:
        return ranges_of(self._source, np.array([*wanted], np.int64), (self._field,))

    def _payload(self, sample: int) -> bytes | None:
        columns = self._source.read(np.array([sample], np.int64), (self._field,))
        value: Any = values_of(columns.fields[self._field])[0]
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(
                f"clips({self._field!r}): a video is bytes, and sample {sample} has a "
                f"{type(value).__name__}"
            )
        return None if value is None else bytes(value)
