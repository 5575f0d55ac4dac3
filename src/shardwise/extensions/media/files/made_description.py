"""A sample description (`stsd`) for frames that come from another container than mp4.

H.264 and HEVC of ts have start codes in place of lengths (ITU-T H.264, Annex B): they are turned
into lengths, and the parameter sets go into the description.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import full_box, make_box
from shardwise.extensions.media.files.track import Track

_OBJECTS = {"mpeg4": 0x20, "mpeg2video": 0x61, "mpeg1video": 0x6A, "mjpeg": 0x6C}
# A start code, and the zeros that may stand before it.
_START = re.compile(rb"\x00+\x00\x00\x01|\x00\x00\x01")


def make_description(track: Track, payloads: Sequence[bytes | memoryview]) -> bytes:
    """The content of a `stsd` box; the first payload's key frame may have its parameter sets.

    Raises:
        DataError: the codec has no form in mp4.
    """
    codec, config = track.codec, track.config
    if codec == "h264":
        kind, box = b"avc1", make_box(b"avcC", _avc_config(config, payloads))
    elif codec == "hevc":
        kind, box = b"hvc1", make_box(b"hvcC", _hevc_config(config, payloads))
    elif codec == "av1":
        kind, box = b"av01", make_box(b"av1C", config or b"\x81\0\0\0")
    elif codec in ("vp8", "vp9"):
        kind = b"vp08" if codec == "vp8" else b"vp09"
        box = full_box(b"vpcC", b"\0\x1f\x80\2\2\2\0\0", version=1)
    elif codec in _OBJECTS:
        kind, box = b"mp4v", full_box(b"esds", _es_descriptor(_OBJECTS[codec], config))
    else:
        raise DataError(f"torchcodec can't be given {codec} of this container: use backend='pyav'")
    numbers = struct.pack(">6xH16xHHIIIH", 1, track.width, track.height, 0x480000, 0x480000, 0, 1)
    entry = make_box(kind, numbers, bytes(32), struct.pack(">Hh", 24, -1), box)
    return struct.pack(">II", 0, 1) + entry


def with_lengths(track: Track, payload: bytes | memoryview) -> bytes | memoryview:
    """A coded frame of H.264 or HEVC with lengths in place of start codes; others as they are."""
    if track.codec not in ("h264", "hevc") or _has_lengths(track.config):
        return payload
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in _units(bytes(payload)))


def _has_lengths(config: bytes) -> bool:
    return len(config) > 6 and config[0] == 1


def _units(data: bytes) -> list[bytes]:
    """NAL units between start codes; zeros at the end of one belong to the next start code."""
    if not data.startswith((b"\0\0\1", b"\0\0\0\1")):
        raise DataError("a coded frame has neither start codes nor lengths")
    return [unit.rstrip(b"\0") for unit in _START.split(data) if unit.strip(b"\0")]


def _avc_config(config: bytes, payloads: Sequence[bytes | memoryview]) -> bytes:
    if _has_lengths(config):
        return config
    units = [unit for data in (config, bytes(payloads[0])) if data for unit in _units(data)]
    sets = [unit for unit in units if unit[0] & 31 == 7][:1]
    pictures = list(dict.fromkeys(unit for unit in units if unit[0] & 31 == 8))
    if not sets or not pictures:
        raise DataError("h264: the first key frame has no parameter sets")
    head = bytes([1, *sets[0][1:4], 0xFF])
    return head + b"\xe1" + _listed(sets) + bytes([len(pictures)]) + _listed(pictures)


def _hevc_config(config: bytes, payloads: Sequence[bytes | memoryview]) -> bytes:
    if _has_lengths(config):
        return config
    units = [unit for data in (config, bytes(payloads[0])) if data for unit in _units(data)]
    arrays = b""
    for kind in (32, 33, 34):  # video, sequence and picture parameter sets
        own = list(dict.fromkeys(unit for unit in units if unit[0] >> 1 & 63 == kind))
        if not own:
            raise DataError("hevc: the first key frame has no parameter sets")
        arrays += struct.pack(">BH", 0x80 | kind, len(own)) + _listed(own)
    # Profile and level are read from the parameter sets.
    return b"\1" + bytes(12) + b"\xf0\0\xfc\xfd\xf8\xf8\0\0\x0f\3" + arrays


def _listed(units: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">H", len(unit)) + unit for unit in units)


def _es_descriptor(kind: int, config: bytes) -> bytes:
    """An elementary stream descriptor (ISO/IEC 14496-1)."""
    special = _tagged(5, config) if config else b""
    decoder = _tagged(4, bytes([kind, 0x11]) + bytes(11) + special)
    return _tagged(3, b"\0\1\0" + decoder + _tagged(6, b"\2"))


def _tagged(tag: int, data: bytes) -> bytes:
    size = len(data)
    sizes = [size >> shift & 0x7F | (0x80 if shift else 0) for shift in (21, 14, 7, 0)]
    return bytes([tag, *sizes]) + data
