"""Ogg: pages are checked by their CRC-32, and packets of Opus and Vorbis are found in them.

Decoders go on after a damaged page with the one after it, and all that follows comes early: so each
page is compared. Formats: RFC 3533, RFC 7845, https://xiph.org/vorbis/doc/Vorbis_I_spec.html
"""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.opus_vorbis import opus_samples, vorbis_samples
from shardwise.extensions.media.files.track import Track, TrackColumns

# Bits of a byte in the other order.
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_PAGE_BYTES = 27
_OPUS_RATE = 48000


class _Stream:
    """The packets of one stream."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.offsets: list[int] = []  # -1 for a packet that lies on several pages
        self.granules: list[tuple[int, int]] = []  # packets up to a page's end, and its position
        self.is_open = True
        self._begun = b""

    def add(self, data: bytes, body: int, lacing: bytes, granule: int) -> None:
        at = stop = body
        for length in lacing:
            stop += length
            if length < 255:
                self.offsets.append(-1 if self._begun else at)
                self.packets.append(self._begun + data[at:stop])
                self._begun, at = b"", stop
        if stop > at:
            self._begun += data[at:stop]
        if granule >= 0:
            self.granules.append((len(self.packets), granule))


def read_ogg(data: bytes | memoryview, limits: Limits) -> tuple[Track, list[bytes] | None] | None:
    """The track of one stream of Opus or Vorbis, and its payloads if they lie on several pages.

    None is for other streams, which FFmpeg has to demux.
    """
    streams = _streams(bytes(data))
    if len(streams) != 1:
        return None
    (stream,) = streams
    head, *others = stream.packets[:3] or [b""]
    if head[:8] == b"OpusHead" and len(head) >= 19:
        num_heads, rate, channels, config = 2, _OPUS_RATE, head[9], head
        counts = np.array([opus_samples(each) for each in stream.packets[2:]], np.int64)
        lead = int.from_bytes(head[10:12], "little")
    elif head[:7] == b"\x01vorbis" and len(head) >= 30 and len(others) == 2:
        num_heads, channels, lead = 3, head[11], 0
        (rate,) = struct.unpack_from("<I", head, 12)
        config = b"\2" + _lace(len(head)) + _lace(len(others[0])) + b"".join(stream.packets[:3])
        counts = vorbis_samples(head, others[1], stream.packets[3:])
    else:
        return None
    limits.check_frames(len(counts), "packets")
    ends = np.append(0, np.cumsum(counts))
    places = [(packets - num_heads, at) for packets, at in stream.granules if packets > num_heads]
    if not places or not rate or not channels:
        return None
    begin = places[0][1] - int(ends[places[0][0]])
    stop = places[-1][1] - begin
    if places[0][0] == places[-1][0]:
        begin, stop = 0, min(places[0][1], int(ends[-1]))
    if begin < 0 or not 0 <= stop <= int(ends[-1]):
        return None
    offsets = np.array(stream.offsets[num_heads:], np.int64)
    payloads = stream.packets[num_heads:]
    always = np.ones(len(counts), np.bool_)
    columns = TrackColumns(
        begin + ends[:-1], counts, np.array([len(each) for each in payloads], np.int64),
        offsets if (offsets >= 0).all() else np.full(len(offsets), -1, np.int64), always, always,
    )  # fmt: skip
    track = Track(
        kind="audio", codec="opus" if num_heads == 2 else "vorbis", config=config,
        time_base=(1, rate), columns=columns, rate=rate, num_channels=channels,
        origin=begin + lead, lead=lead, length=max(0, stop - lead),
    )  # fmt: skip
    return track, None if track.is_ranged else payloads


def _streams(data: bytes) -> list[_Stream]:
    at = 0
    streams: dict[bytes, _Stream] = {}
    while at < len(data):
        head = data[at : at + _PAGE_BYTES]
        if head[:4] != b"OggS" or len(head) < _PAGE_BYTES:
            raise DataError("a page of Ogg does not begin where the one before ends", offset=at)
        body = at + _PAGE_BYTES + head[26]
        lacing = data[at + _PAGE_BYTES : body]
        end = body + sum(lacing)
        if end > len(data):
            raise DataError("the last page of Ogg ends after the file: it was cut", offset=at)
        if _crc(head[:22] + bytes(4) + data[at + 26 : end]) != struct.unpack_from("<I", head, 22):
            raise DataError("a page of Ogg is damaged: its CRC-32 differs", offset=at)
        stream = streams.setdefault(head[14:18], _Stream())
        stream.add(data, body, lacing, struct.unpack_from("<q", head, 6)[0])
        stream.is_open = stream.is_open and not head[5] & 4
        at = end
    if any(stream.is_open for stream in streams.values()):
        raise DataError(
            "a stream of Ogg has no last page: it was cut, or is still written", offset=len(data)
        )
    return list(streams.values())


def _crc(page: bytes) -> tuple[int]:
    """The CRC-32 of Ogg: that of zlib with all bits in the other order, and started with 0."""
    reflected = crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return (int.from_bytes(reflected.to_bytes(4, "little").translate(_REVERSED), "big"),)


def _lace(size: int) -> bytes:
    return b"\xff" * (size // 255) + bytes([size % 255])
