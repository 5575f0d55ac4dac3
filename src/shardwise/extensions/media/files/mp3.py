"""The frames of an mp3 by their headers: no FFmpeg, a microsecond per frame.

Delay and padding are those of the tag of LAME in the first frame. Files with anything else between
frames, or of other layers, give None: then FFmpeg demuxes them.
"""

from __future__ import annotations

import struct

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.track import Track, TrackColumns

_KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_KBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_RATES = (44100, 48000, 32000)
# A decoder of layer III is this late; the tag has the encoder's part alone.
_DECODER_DELAY = 529


def _header(head: bytes) -> tuple[int, int, int, int] | None:
    """Bytes, samples, rate and channels of a frame by its first 4 bytes; None if invalid."""
    (word,) = struct.unpack(">I", head)
    version, layer = word >> 19 & 3, word >> 17 & 3
    kbits_at, rate_at, padding = word >> 12 & 15, word >> 10 & 3, word >> 9 & 1
    if word >> 21 != 0x7FF or version == 1 or layer != 1 or rate_at == 3:
        return None
    kbits = (_KBITS_1 if version == 3 else _KBITS_2)[kbits_at]
    rate = _RATES[rate_at] >> (0, 1, 2)[(3, 2, 0).index(version)]
    samples = 1152 if version == 3 else 576
    size = samples // 8 * kbits * 1000 // rate + padding
    return (size, samples, rate, 1 if word >> 6 & 3 == 3 else 2) if kbits else None


def read_mp3(data: bytes | memoryview, limits: Limits) -> Track | None:
    """The track of an mp3; None for what FFmpeg has to read."""
    view = memoryview(data)
    at = first = _behind_tag(view)
    known = _header(bytes(view[at : at + 4])) if at + 4 <= len(view) else None
    if known is None:
        return None
    _, samples, rate, channels = known
    offsets: list[int] = []
    whole, end = bytes(view), len(view)
    sizes_of: dict[bytes, int] = {}
    while at <= end - 4:
        head = whole[at : at + 4]
        size = sizes_of.get(head)
        if size is None:
            found = _header(head)
            size = found[0] if found is not None and found[1:3] == (samples, rate) else 0
            sizes_of[head] = size
        if not size:
            break
        offsets.append(at)
        at += size
    sizes = np.diff(offsets, append=at)
    if at < end and bytes(view[at : at + 3]) not in (b"TAG", b"APE") and any(view[at:]):
        return None
    told, delay, padding = _tag(bytes(view[first : first + sizes[0]]))
    if told is not None:
        offsets, sizes = offsets[1:], sizes[1:]
        if len(offsets) + (at > end) > told + 1:
            return None  # files one after the other
    limits.check_frames(len(offsets), "packets")
    if at > end or (told is not None and len(offsets) < told - 1):
        raise DataError(
            f"the mp3 has {len(offsets)} frames, the last one up to byte {at}"
            f"{f', of {told} that its header tells' if told else ''}: it was cut",
            offset=end,
        )
    count = len(offsets)
    lead = delay + _DECODER_DELAY if delay is not None else 0
    always = np.ones(count, np.bool_)
    columns = TrackColumns(
        np.arange(count, dtype=np.int64) * samples - lead,
        np.full(count, samples, np.int64),
        sizes,
        np.array(offsets, np.int64),
        always,
        always,
    )
    length = (told or count) * samples - (delay or 0) - padding
    return Track(
        kind="audio", codec="mp3", config=b"", time_base=(1, rate), columns=columns, rate=rate,
        num_channels=channels, lead=lead, length=max(0, min(length, count * samples - lead)),
    )  # fmt: skip


def _behind_tag(view: memoryview) -> int:
    """The start of the frames: after tags of ID3, version 2."""
    at = 0
    while bytes(view[at : at + 3]) == b"ID3" and at + 10 <= len(view):
        a, b, c, d = (byte & 127 for byte in view[at + 6 : at + 10])
        at += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if view[at + 5] & 16 else 0)
    return at


def _tag(frame: bytes) -> tuple[int | None, int | None, int]:
    """The number of frames, delay and padding in the first frame's tag; None if missing.

    A frame with a tag is not sound.
    """
    at = max(frame.find(b"Xing", 0, 64), frame.find(b"Info", 0, 64))
    if at < 0 or len(frame) < at + 8:
        return None, None, 0
    (flags,) = struct.unpack_from(">I", frame, at + 4)
    count = int.from_bytes(frame[at + 8 : at + 12], "big") if flags & 1 else 0
    lame = at + 8 + sum(size for bit, size in ((1, 4), (2, 4), (4, 100), (8, 4)) if flags & bit)
    if frame[lame : lame + 4] not in (b"LAME", b"Lavf", b"Lavc", b"L3.9") or not count:
        return count or None, None, 0
    numbers = int.from_bytes(frame[lame + 21 : lame + 24], "big")
    return count, numbers >> 12, numbers & 0xFFF
