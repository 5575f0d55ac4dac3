"""Files of a list or a folder, by ranges; each process makes their indexes at the first use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.sources.files.source import FilesSource
from shardwise.sources.per_process import PerProcess
from shardwise.storage import FileStat
from shardwise.storage.protocol import File

# Coded frames of indexes that are kept, at 50 bytes each: 400 hours of FLAC.
_MAX_FRAMES = 10_000_000


class _FileReader:
    """A file of storage as what media are read from."""

    def __init__(self, file: File, stat: FileStat) -> None:
        self._file = file
        self.num_bytes = stat.num_bytes

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`."""
        return bytes(self._file.read(start, stop - start))


class ListedFiles:
    """Media by the samples' ids; satisfies `shardwise.extensions.media.clips.files.MediaFiles`.

    Of mp4 and wav the index needs the header alone; of others all bytes are read for it, once a
    process and file, however many samples name that file.
    """

    def __init__(self, source: FilesSource) -> None:
        self._source = source
        self._lock: PerProcess[threading.Lock] = PerProcess()
        self._indexes: OrderedDict[str, MediaIndex] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_indexes": OrderedDict()}

    def identity(self) -> str:
        """That of the list."""
        return self._source.manifest.fingerprint

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file; DataError if it can't be used."""
        name = self._source.listing.names[sample]
        with self._lock.get(threading.Lock):
            known = self._indexes.get(name)
        if known is not None:
            return known
        with self._source.opened_file(sample) as (file, stat):
            # The payloads of a whole file are not kept.
            index = replace(index_media(_FileReader(file, stat)), payloads=None)
        with self._lock.get(threading.Lock):
            self._indexes[name] = index
            while (
                len(self._indexes) > 1
                and sum(map(_num_frames, self._indexes.values())) > _MAX_FRAMES
            ):
                self._indexes.popitem(last=False)
        return index

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""
        listing = self._source.listing
        return f"{listing.base.rstrip('/')}/{listing.names[sample]}", listing.names[sample]

    def read(
        self, wanted: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, list[tuple[int, memoryview]]]]:
        """By sample, pairs of a range's start and its bytes."""
        for sample, ranges in wanted.items():
            with self._source.opened_file(sample) as (file, stat):
                if ranges and ranges[-1][1] > stat.num_bytes:
                    raise DataError(f"bytes up to {ranges[-1][1]} of {stat.num_bytes} are needed")
                parts = [
                    (start, memoryview(file.read(start, stop - start))) for start, stop in ranges
                ]
            yield sample, parts


def _num_frames(index: MediaIndex) -> int:
    return sum(len(track.columns.pts) for track in index.tracks)
