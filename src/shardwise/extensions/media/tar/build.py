"""Making and reading sidecars: while a shard is written, or of one that is there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.base.shown import in_command
from shardwise.extensions.media.files.index_format import bad_block, media_block
from shardwise.extensions.media.tar.sidecar import (
    MediaSidecar,
    SidecarHeader,
    encode_sidecar,
    sidecar_path,
)
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import StorageOptions
from shardwise.storage.protocol import File
from shardwise.storage.write import write_whole

_EXTENSIONS = frozenset([
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "ts", "m2ts", "mpg", "mpeg",
    "mp3", "m4a", "aac", "ogg", "oga", "opus", "mka", "flac", "wav",
    # As `sw.files` names the fields of folders, and builds of these name their members.
    "video", "audio",
])  # fmt: skip

# A shard of 1 GB of video has 0.7 MB of index.
_MAX_WHOLE_BYTES = 64 << 20


def is_media_field(field: str) -> bool:
    """Whether a field's name ends like a video, or like sound whose packets need an index."""
    return field.rpartition(".")[2].lower() in _EXTENSIONS


def media_fields(index: ShardIndex) -> tuple[str, ...]:
    """The fields of a shard that have media."""
    return tuple(filter(is_media_field, index.fields))


def require_media_field(field: str) -> None:
    """Raise ValueError for a field that no media index has."""
    if not is_media_field(field):
        known = ", ".join(sorted(_EXTENSIONS))
        raise ValueError(f"{field!r} is in no media index: those have fields that end in {known}")


def sample_blocks(key: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """The blocks of one encoded sample by field; DataError if a media file can't be used."""
    blocks = {}
    for name, data in members:
        field = name[len(key) + 1 :]
        if is_media_field(field):
            try:
                blocks[field] = media_block(data)
            except DataError as error:
                raise DataError(error.reason, key=key, field=field, offset=error.offset) from error
    return blocks


def publish_sidecar(
    url: str, index: ShardIndex, samples: Sequence[Mapping[str, bytes]], *, store: IndexStore
) -> str | None:
    """Write a sidecar beside the shard's index, whole or not at all, and return its path.

    `samples` have their blocks by field; None for a shard without media.
    """
    header = _sidecar_header(index)
    if not header.fields:
        return None
    blocks = [sample.get(name, b"") for sample in samples for name in header.fields]
    path = sidecar_path(store.published_path(url))
    write_whole(path, encode_sidecar(header, blocks), options=store.options)
    return path


def _sidecar_header(index: ShardIndex) -> SidecarHeader:
    fields, rows = media_fields(index), np.arange(index.num_samples)
    digest = 0
    for field in fields:
        offsets, sizes = index.locate(field, rows)
        digest = zlib.crc32(np.where(sizes < 0, -1, offsets).astype("<i8").tobytes(), digest)
        digest = zlib.crc32(sizes.astype("<i8").tobytes(), digest)
    return SidecarHeader(index.num_bytes, index.num_samples, fields, digest)


def media_payloads(
    url: str, index: ShardIndex, options: StorageOptions | None
) -> Iterator[tuple[int, str, int, bytes | None]]:
    """Row, field, offset and payload of each media file of a shard; None for a missing one."""
    fields, file = media_fields(index), open_uncached(url, options)
    try:
        for row in range(index.num_samples):
            for field, (offset, size) in zip(fields, index.locate_one(fields, row), strict=True):
                yield row, field, offset, None if size < 0 else file.read(offset, size)
    finally:
        file.close()


def build_sidecar(url: str, *, store: IndexStore) -> tuple[str | None, list[DataError]]:
    """Make the sidecar of an indexed shard: its path (see above), and errors of unusable files."""
    index = fresh_index(url, store)
    samples: list[dict[str, bytes]] = [{} for _ in range(index.num_samples)]
    bad: list[DataError] = []
    for row, field, offset, data in media_payloads(url, index, store.options):
        try:
            if data is not None:
                samples[row][field] = media_block(data)
        except DataError as error:
            error.url, error.key, error.field = url, index.keys[row], field
            error.offset = offset + (error.offset or 0)
            bad.append(error)
            samples[row][field] = bad_block(error.reason)
    return publish_sidecar(url, index, samples, store=store), bad


def open_sidecar(url: str, *, store: IndexStore) -> MediaSidecar | None:
    """The sidecar of a shard; None if it has no sidecar."""
    path = sidecar_path(store.published_path(url))
    try:
        file: File = open_uncached(path, store.options)
        num_bytes = file.stat().num_bytes
    except MissingShardError:
        return None

    # One request for all of a remote sidecar, not one per sample.
    whole = file.read(0, num_bytes) if file.is_remote and num_bytes <= _MAX_WHOLE_BYTES else None

    def read(start: int, stop: int) -> bytes:
        start, stop = min(start, num_bytes), min(stop, num_bytes)
        if whole is not None:
            return whole[start:stop]
        return file.read(start, stop - start) if stop > start else b""

    sidecar = MediaSidecar(read, path=path)
    index = fresh_index(url, store)
    if sidecar.header != _sidecar_header(index):
        raise StaleIndexError(
            "the media sidecar is of another version of the shard: make it again with "
            f"`shardwise index --media {in_command(url)}`",
            url=url,
        )
    return sidecar


def fresh_index(url: str, store: IndexStore) -> ShardIndex:
    """The index of a shard, which must be there and fit."""
    saved = store.look(url)
    if saved.error is not None:
        raise saved.error
    if saved.state != "fresh" or saved.index is None:
        raise StaleIndexError(
            f"the index of the shard is {saved.state}: run "
            f"`{store.command} {in_command(url)}` first",
            url=url,
        )
    return saved.index
