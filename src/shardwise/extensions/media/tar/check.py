"""Checking the media of a shard: against its sidecar, if it has one, and by decoding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardwise.base.errors import DataError, MissingExtraError, ShardwiseError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.index_format import media_block
from shardwise.extensions.media.files.media_index import MediaIndex, index_media, with_checksums
from shardwise.extensions.media.files.sound import PacketSound
from shardwise.extensions.media.tar.build import (
    fresh_index,
    media_fields,
    media_payloads,
    open_sidecar,
)
from shardwise.extensions.media.tar.sidecar import MediaSidecar
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.problems import Problem, problem_of

_SECONDS_AT_ONCE = 10


def media_problems(url: str, *, store: IndexStore) -> Iterator[Problem]:
    """Find the problems of a shard's media.

    Each payload is compared with the checksums of the sidecar, if there is one, and decoded: it
    may have been damaged before it was indexed.
    """
    try:
        index = fresh_index(url, store)
        sidecar = open_sidecar(url, store=store) if media_fields(index) else None
        for row, field, offset, data in media_payloads(url, index, store.options):
            if data is None:
                continue
            try:
                _check(data, row, field, sidecar)
            except MissingExtraError:
                raise
            except DataError as error:
                yield Problem(
                    url,
                    error.reason,
                    "replace the file, or leave the sample out",
                    key=index.keys[row],
                    field=field,
                    offset=offset + (error.offset or 0),
                )
    except MissingExtraError:
        raise
    except ShardwiseError as error:
        yield problem_of(error, url)


def _check(data: bytes, row: int, field: str, sidecar: MediaSidecar | None) -> None:
    try:
        indexed = None if sidecar is None else sidecar.index(row, field)
    except DataError:
        # A sidecar has the reason of a file that can't be used, but not the offset of the damage.
        media_block(data)
        raise
    if indexed is not None:
        _compare(data, indexed)
    check_media(data)


def _compare(data: bytes, indexed: MediaIndex) -> None:
    reader = BytesReader(data)
    found = with_checksums(index_media(reader), reader)
    for mine, theirs in zip(found.tracks, indexed.tracks, strict=True):
        assert mine.checksums is not None
        assert theirs.checksums is not None
        if len(mine.checksums) != len(theirs.checksums):
            raise DataError("the file has other frames than its media index says")
        wrong = np.flatnonzero(mine.checksums != theirs.checksums)
        if len(wrong):
            raise DataError(
                f"{mine.kind}: {len(wrong)} of {len(mine.checksums)} groups of frames are not the "
                f"ones that were indexed, the first of them group {int(wrong[0])}"
            )


def check_media(data: bytes) -> None:
    """Decode all of a media file; DataError if something can't be decoded."""
    reader = BytesReader(data)
    index = index_media(reader)
    kinds = {track.kind for track in index.tracks}
    if not kinds:
        raise DataError("the file has neither pictures nor sound")
    if "video" in kinds:
        form = form_of(index, size=(16, 16))
        num_frames = index.first("video").num_frames
        # Large parts, since each starts at a key frame.
        for start in range(0, num_frames, 1024):
            numbers = np.arange(start, min(start + 1024, num_frames))
            decode_frames(reader, index, numbers, form=form)
    if "audio" in kinds:
        sound = PacketSound(reader, index)
        step = _SECONDS_AT_ONCE * sound.rate
        for start in range(0, sound.num_samples, step):
            sound.read(start, min(start + step, sound.num_samples))
