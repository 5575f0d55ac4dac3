"""The index of a media file: its tracks, and what decoding needs besides the bytes of frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import spent_in
from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import read_head, read_moov
from shardwise.extensions.media.files.byte_reader import RangeReader, read_exactly
from shardwise.extensions.media.files.demux import demux
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.moov import read_tracks
from shardwise.extensions.media.files.mp3 import read_mp3
from shardwise.extensions.media.files.ogg import read_ogg
from shardwise.extensions.media.files.track import Track
from shardwise.extensions.media.files.wave import is_wave, read_wave

_MP4 = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp")


@dataclass(frozen=True)
class MediaIndex:
    """The locations of all coded frames in one media file.

    Attributes:
        num_bytes: the file's size.
        tracks: pictures and sound, in the file's order.
        payloads: the coded frames of each track, in decode order, where the file had to be demuxed
            and was in memory; else None. They are not stored.
    """

    num_bytes: int
    tracks: tuple[Track, ...]
    payloads: tuple[list[bytes], ...] | None = field(default=None, repr=False, compare=False)

    def first(self, kind: str) -> Track:
        """The first track of a kind."""
        track = next((track for track in self.tracks if track.kind == kind), None)
        if track is None:
            kinds = ", ".join(f"{track.kind} ({track.codec})" for track in self.tracks)
            raise DataError(f"the file has no {kind} track; it has {kinds or 'no track'}")
        if not track.num_frames:
            raise DataError(f"the {kind} track has no frames")
        return track

    def payloads_of(self, track: Track) -> list[bytes] | None:
        """The payloads of a track, where they are in memory."""
        if self.payloads is None:
            return None
        return self.payloads[next(i for i, each in enumerate(self.tracks) if each is track)]


@spent_in("demux")
def index_media(reader: RangeReader, *, limits: Limits = DEFAULT_LIMITS) -> MediaIndex:
    """The index of a file: mp4, mov and wav by a few reads, others by reading all."""
    if not reader.num_bytes:
        raise DataError("the file is empty", offset=0)
    head = read_head(reader)
    begin = bytes(head[:12])
    if begin[4:8] in _MP4:
        tracks = read_tracks(read_moov(reader, head), num_bytes=reader.num_bytes, limits=limits)
        if tracks is not None:
            return MediaIndex(reader.num_bytes, tuple(tracks))
    if is_wave(begin) and (wave := read_wave(reader, head, limits)) is not None:
        return MediaIndex(reader.num_bytes, (wave,))
    data = read_exactly(reader, 0, reader.num_bytes)
    if begin[:4] == b"OggS" and (ogg := read_ogg(data, limits)) is not None:
        track, own = ogg
        return MediaIndex(reader.num_bytes, (track,), None if own is None else (own,))
    if (begin[:3] == b"ID3" or begin[:1] == b"\xff") and (
        mp3 := read_mp3(data, limits)
    ) is not None:
        return MediaIndex(reader.num_bytes, (mp3,))
    demuxed, payloads = demux(data, limits)
    return MediaIndex(reader.num_bytes, tuple(demuxed), tuple(payloads))


def with_checksums(index: MediaIndex, reader: RangeReader) -> MediaIndex:
    """The index with a CRC-32 per group of pictures, for which all bytes are read."""
    data = memoryview(read_exactly(reader, 0, reader.num_bytes))
    tracks = []
    for track in index.tracks:
        payloads: list[bytes] | list[memoryview] = index.payloads_of(track) or [
            data[start : start + size]
            for start, size in zip(
                track.columns.offset.tolist(), track.columns.size.tolist(), strict=True
            )
        ]
        bounds = checksum_groups(track).tolist()
        checksums = [checksum_of(payloads[start:stop]) for start, stop in pairwise(bounds)]
        tracks.append(replace(track, checksums=np.array(checksums, np.uint32)))
    return replace(index, tracks=tuple(tracks))


def checksum_of(payloads: Iterable[bytes | memoryview]) -> int:
    """The CRC-32 of coded frames, one after the other."""
    digest = 0
    for payload in payloads:
        digest = crc32(payload, digest)
    return digest


def checksum_groups(track: Track) -> NDArray[np.int64]:
    """The bounds of each checksum: a group of pictures, or 64 packets of sound (each is a key)."""
    if track.kind == "video" and not track.columns.key.all():
        return track.groups()
    num_coded = len(track.columns.pts)
    return np.unique(np.append(np.arange(0, num_coded, 64), num_coded))
