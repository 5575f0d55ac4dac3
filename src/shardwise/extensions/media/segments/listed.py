"""Files of a list or a folder, by ranges; each process makes their indexes at the first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.ranged_files import RangeReader, RecentIndexes
from shardwise.sources.files.source import FilesSource
from shardwise.storage import PoolRanges

# Coded frames of indexes that are kept, at 50 bytes each: 400 hours of FLAC.
_MAX_FRAMES = 10_000_000


class ListedFiles:
    """Media by the samples' ids; satisfies `shardwise.extensions.media.clips.files.MediaFiles`.

    Of mp4 and wav the index needs the header alone; of others all bytes are read for it, once a
    process and file, however many samples name that file.
    """

    def __init__(self, source: FilesSource) -> None:
        self._source = source
        self._recent: RecentIndexes[str] = RecentIndexes(_MAX_FRAMES)

    def identity(self) -> str:
        """That of the list."""
        return self._source.manifest.fingerprint

    def index(self, sample: int) -> MediaIndex:
        """The index of a sample's file; DataError if it can't be used."""

        def make(_: str) -> MediaIndex:
            with self._source.opened_file(sample) as (file, stat):
                # The payloads of a whole file are not kept.
                return replace(index_media(RangeReader(file, stat.num_bytes)), payloads=None)

        return self._recent.get(self._source.listing.names[sample], make)

    def place(self, sample: int) -> tuple[str, str]:
        """Url and key of a sample."""
        listing = self._source.listing
        return f"{listing.base.rstrip('/')}/{listing.names[sample]}", listing.names[sample]

    def reads(self, _: Mapping[int, Sequence[tuple[int, int]]], /) -> list[PoolRanges]:
        """Nothing that is known before: each file is opened when it is read."""
        return []

    def read(
        self, ranges_of: Mapping[int, Sequence[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, memoryview]]]:
        """By sample, pairs of a range's start and its bytes."""
        found = {}
        for sample, ranges in ranges_of.items():
            with self._source.opened_file(sample) as (file, stat):
                if ranges and ranges[-1][1] > stat.num_bytes:
                    raise DataError(f"bytes up to {ranges[-1][1]} of {stat.num_bytes} are needed")
                found[sample] = [
                    (start, memoryview(file.read(start, stop - start))) for start, stop in ranges
                ]
        return found
