"""Dependencies of coded pictures on others, read from their NAL units.

After an instantaneous decoding refresh (IDR) an H.264 decoder uses nothing from before. Other key
frames of H.264 state from which picture on all are right (ITU-T H.264, recovery point, D.2.8).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.track import Track

_INTRA_SLICES = (2, 4, 7, 9)
_MESSAGES, _RECOVERY_POINT = 6, 6
# Bytes of a unit that are looked at. Recovery points stand before long messages.
_LOOKED_AT = 64
# A start code (ITU-T H.264, Annex B), and the zeros that may stand before it.
_START = re.compile(rb"\x00+\x00\x00\x01|\x00\x00\x01")
# Zeros that no coder of these codecs writes, but at the end of a picture or unit.
_HOLE, _WITHOUT_HOLES = bytes(32), ("h264", "hevc", "mpeg4", "vp8", "vp9")


def has_hole(track: Track, payload: bytes) -> bool:
    """Whether zeros lie in place of a part of a picture, as in files that were not loaded whole."""
    if track.codec not in _WITHOUT_HOLES or _HOLE not in payload:
        return False
    units = [(0, len(payload))]
    if track.codec in ("h264", "hevc"):
        # With start codes zeros may follow each unit.
        units = [*_units(payload, _length_bytes(track))] if track.config[:1] == b"\1" else []
    return any(_HOLE in payload[begin:end].rstrip(b"\0") for begin, end in units)


def _length_bytes(track: Track) -> int:
    """Bytes before each NAL unit of H.264 or HEVC."""
    at = 21 if track.codec == "hevc" else 4
    is_told = len(track.config) > at + 2 and track.config[0] == 1
    return (track.config[at] & 3) + 1 if is_told else 4


def is_refresh(track: Track, payload: bytes | memoryview) -> bool:
    """Whether a coded H.264 picture is an IDR, by its first slice."""
    payload = _with_lengths(track, payload)
    for begin, _ in _units(payload, _length_bytes(track)):
        if 1 <= payload[begin] & 31 <= 5:
            return payload[begin] & 31 == 5
    return False


def is_whole_by_itself(track: Track, payload: bytes | memoryview) -> bool:
    """Whether a coded H.264 picture needs no other, nor does one that is shown after it.

    Its slices are intra slices, and no recovery point marks pictures as right only later.
    """
    payload = _with_lengths(track, payload)
    has_slices = False
    for begin, end in _units(payload, _length_bytes(track)):
        unit = bytes(payload[begin : min(end, begin + _LOOKED_AT)]).replace(b"\0\0\3", b"\0\0")
        kind = unit[0] & 31 if unit else 0
        if kind == _MESSAGES and _recovery_frames(unit[1:]):
            return False
        if 1 <= kind <= 5:
            has_slices = True
            _, at = _number(unit, 8)
            if _number(unit, at)[0] not in _INTRA_SLICES:
                return False
    return has_slices


def _with_lengths(track: Track, payload: bytes | memoryview) -> bytes | memoryview:
    """A coded H.264 frame with lengths in place of start codes, if it has any."""
    if len(track.config) > 6 and track.config[0] == 1:
        return payload
    data = bytes(payload)
    if not data.startswith((b"\0\0\1", b"\0\0\0\1")):
        raise DataError("a coded frame has neither start codes nor lengths")
    # Zeros at the end of a unit belong to the next start code.
    units = [unit.rstrip(b"\0") for unit in _START.split(data) if unit.strip(b"\0")]
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in units)


def _units(payload: bytes | memoryview, num_length_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and end of each NAL unit; the end of a cut one lies after the payload's."""
    at = 0
    while at + num_length_bytes < len(payload):
        begin = at + num_length_bytes
        at = begin + int.from_bytes(payload[at:begin], "big")
        yield begin, at


def _recovery_frames(messages: bytes) -> int:
    """The number of frames until all are right, by a picture's messages; 0 if unknown."""
    at = 0
    while at + 2 < len(messages):
        kind, num_bytes, at = messages[at], messages[at + 1], at + 2
        if kind == _RECOVERY_POINT:
            return _number(messages, 8 * at)[0]
        if 255 in (kind, num_bytes):
            break
        at += num_bytes
    return 0


def _number(data: bytes, at: int) -> tuple[int, int]:
    """An Exp-Golomb number (9.1) at a bit, and the bit after it."""
    bits = "".join(f"{byte:08b}" for byte in data[at // 8 : at // 8 + 12])[at % 8 :]
    zeros = len(bits) - len(bits.lstrip("0"))
    return int(bits[zeros : 2 * zeros + 1] or "1", 2) - 1, at + 2 * zeros + 1
