"""Media files of a dataset's samples, with their indexes: of sources that know them, and others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import values_of
from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.lone_files import LoneFiles, SourceOfFiles
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.media_index import MediaIndex, index_media, with_checksums
from shardwise.sources.protocol import HasMediaFiles, Source
from shardwise.sources.protocol import ranges_of as ranges_of_source
from shardwise.storage import PoolRanges

# Samples that are indexed at the first use: reading 10,000 clips of 1 MB takes a minute.
_MAX_FILES = 10_000
# A file that can't be used has the reason in place of its index, as in a sidecar.
_BAD = b"!"


class MediaFiles(Protocol):
    """The media files of a field, by the samples' ids in the source; pickles without open files."""

    def identity(self) -> str:
        """A text that changes with the indexes."""
        ...

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file.

        Raises:
            DataError: the file can't be used; url, key and field say which.
        """
        ...

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""
        ...

    def reads(self, ranges_of: Mapping[int, Sequence[tuple[int, int]]], /) -> list[PoolRanges]:
        """What `read` fetches, as far as that is known."""
        ...

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, memoryview]]]:
        """By sample, pairs of a range's start and its bytes."""
        ...


def files_of(source: Source, field: str, ids: NDArray[np.int64]) -> MediaFiles:
    """The media files of a source.

    Raises:
        ValueError: they have no index, and are too many to be indexed now.
    """
    own = having(source, HasMediaFiles)
    if own is not None:
        files: MediaFiles = own.media_files(field)
        return files
    if "%" in field:
        raise ValueError(f"clips({field!r}): numbered pictures are members of tar shards")
    lone = having(source, SourceOfFiles)
    if lone is not None and field == source.fields[0]:
        return LoneFiles(lone, field, ids)
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
                self._blocks[sample] = b"" if data is None else _block(data)
            except DataError as error:
                self._blocks[sample] = _BAD + error.reason.encode()

    def identity(self) -> str:
        """16 hex digits of all indexes."""
        digest = hashlib.sha256()
        for sample, block in self._blocks.items():
            digest.update(b"%d %d " % (sample, len(block)) + block)
        return digest.hexdigest()[:16]

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file."""
        block = self._blocks[sample]
        if block and not block.startswith(_BAD):
            return index_from_bytes(block)
        reason = block[1:].decode() if block else f"the sample has no {self._field!r}"
        url, key = self.place(sample)
        raise DataError(reason, url=url, key=key, field=self._field)

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""
        ids = np.array([sample], np.int64)
        shard, _ = self._source.manifest.locate(ids)
        return self._source.manifest.urls[int(shard[0])], str(self._source.read(ids, ()).keys[0])

    def reads(self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]) -> list[PoolRanges]:
        """What the source fetches."""
        ids = np.array(list(ranges_of), np.int64)
        return list(ranges_of_source(self._source, ids, (self._field,)) or ())

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, memoryview]]]:
        """Whole files."""
        payloads = {sample: self._payload(sample) for sample in ranges_of}
        return {
            sample: [] if data is None else [(0, memoryview(data))]
            for sample, data in payloads.items()
        }

    def _payload(self, sample: int) -> bytes | None:
        columns = self._source.read(np.array([sample], np.int64), (self._field,))
        value: Any = values_of(columns.fields[self._field])[0]
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(
                f"clips({self._field!r}): a video is bytes, and sample {sample} has a "
                f"{type(value).__name__}"
            )
        return None if value is None else bytes(value)


def _block(data: bytes) -> bytes:
    reader = BytesReader(data)
    return index_to_bytes(with_checksums(index_media(reader), reader))
