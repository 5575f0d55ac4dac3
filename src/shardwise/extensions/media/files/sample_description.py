"""The sample description of an mp4 track (`stsd`): which codec, and what its decoder must know."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import Span, find, walk

# Fourcc -> (FFmpeg's codec, the box with its configuration).
_VIDEO: dict[bytes, tuple[str, bytes]] = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"vp08": ("vp8", b""),
    b"vp09": ("vp9", b""),
}
_AUDIO: dict[bytes, tuple[str, bytes]] = {b"fLaC": ("flac", b"dfLa"), b"Opus": ("opus", b"dOps")}
# MPEG-4 object types of `esds` (the registration authority's list).
_OBJECTS = {
    0x20: "mpeg4", 0x40: "aac", 0x60: "mpeg2video", 0x61: "mpeg2video", 0x66: "aac", 0x67: "aac",
    0x68: "aac", 0x69: "mp3", 0x6A: "mpeg1video", 0x6B: "mp3", 0x6C: "mjpeg",
}  # fmt: skip
_AAC_RATES = (
    96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350,
)  # fmt: skip
# The codes of colours that have a meaning (ISO/IEC 23091-2), in the order of `colr` and `vpcC`.
_COLOUR_CODES: dict[str, frozenset[int]] = {
    "color_primaries": frozenset({1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 22}),
    "color_trc": frozenset({1, *range(4, 19)}),
    "colorspace": frozenset({0, 1, *range(4, 15)}),
}
# An HEVC unit of type 39 whose first message is of type 5: text of the encoder's (ITU-T H.265).
_PREFIX_SEI, _USER_DATA = 39, 5
_VISUAL_BYTES = 78  # before the boxes of a visual sample entry
_SOUND_BYTES = 28


@dataclass(frozen=True)
class SampleDescription:
    """The content of `stsd`: height and width of pictures, rate and channels of sound."""

    codec: str
    config: bytes
    parameters: Mapping[str, str] = field(default_factory=dict)
    height: int = 0
    width: int = 0
    rate: int = 0
    num_channels: int = 0


def read_description(stsd: bytes, *, is_video: bool) -> SampleDescription | None:
    """Read the content of a `stsd` box; None where FFmpeg has to say: changes, unknown codecs."""
    entries = list(walk(stsd, 8, len(stsd)))
    if len(entries) != 1:
        return None
    kind, begin, end = entries[0]
    fixed = _VISUAL_BYTES if is_video else _SOUND_BYTES
    if end - begin < fixed:
        raise DataError(f"the sample description {kind!r} is cut", offset=begin)
    known = (_VIDEO if is_video else _AUDIO).get(kind)
    # QuickTime's entries of sound are longer.
    version = 0 if is_video else int.from_bytes(stsd[begin + 8 : begin + 10], "big")
    boxes = (begin + fixed + (0, 16, 36)[min(version, 2)], end)
    if not is_video:
        check_channel_order(find(stsd, boxes, b"chan"), stsd)
    if version > 1:
        return None
    if kind in (b"mp4v", b"mp4a"):
        esds = find(stsd, boxes, b"esds") or find(stsd, boxes, b"wave", b"esds")
        found = None if esds is None else _read_esds(stsd[esds[0] + 4 : esds[1]])
        if found is None:
            return None
        codec, config = found
    elif known is None:
        return None
    else:
        codec, box = known
        span = find(stsd, boxes, box) if box else (0, 0)
        if span is None:
            raise DataError(f"the sample description {kind!r} has no {box!r}", offset=begin)
        config = _convert_config(codec, stsd[slice(*span)])
    parameters = {"codec_tag": str(int.from_bytes(kind, "little"))}
    if is_video:
        width, height = struct.unpack_from(">HH", stsd, begin + 24)
        parameters |= _colours(stsd, boxes)
        return SampleDescription(codec, config, parameters, height=height, width=width)
    channels, rate = struct.unpack_from(">16xH6xI", stsd, begin)
    if codec == "aac" and len(config) >= 2 and config[0] >> 3 < 31 and config[1] >> 3 & 15:
        # Writers put 2 into the entry, whatever it is; numbers above 6 are layouts.
        layout = config[1] >> 3 & 15
        channels = {7: 8, 11: 7, 12: 8, 14: 8}.get(layout, layout)
        rate_at = (config[0] & 7) << 1 | config[1] >> 7
        rate = _AAC_RATES[rate_at] << 16 if rate_at < len(_AAC_RATES) else rate
    return SampleDescription(codec, config, parameters, rate=rate >> 16, num_channels=channels)


def _colours(stsd: bytes, boxes: Span) -> dict[str, str]:
    """Matrix, transfer, primaries and range of the boxes `colr` and `vpcC`, as FFmpeg's options."""
    found: dict[str, str] = {}
    for kind, begin, end in walk(stsd, *boxes):
        if kind == b"colr" and end - begin >= 10 and stsd[begin : begin + 4] in (b"nclx", b"nclc"):
            values = list(struct.unpack_from(">HHH", stsd, begin + 4))
            full = stsd[begin + 10] >> 7 if stsd[begin : begin + 4] == b"nclx" else None
        elif kind == b"vpcC" and end - begin >= 10:
            values = list(stsd[begin + 7 : begin + 10])
            full = stsd[begin + 6] & 1
        else:
            continue
        for (name, known), value in zip(_COLOUR_CODES.items(), values, strict=True):
            # 2 stands for unknown; so does a number that is reserved.
            found[name] = str(value if value in known else 2)
        if full is not None:
            found["color_range"] = str(1 + full)
    return found


# Orders of channels of CoreAudio that are FFmpeg's own: by bits, and 5.1.
_NATIVE_ORDERS = (1 << 16, 121 << 16 | 6)


def check_channel_order(place: Span | None, data: bytes | memoryview) -> None:
    """Refuse channels in an order that PyAV can't take: it frees such an order twice.

    `place` is that of the content of a box `chan`; None for no such box.
    """
    if place is None:
        return
    tag = int.from_bytes(data[place[0] + 4 : place[0] + 8], "big")
    if tag:
        is_taken = tag & 0xFFFF <= 2 or tag in _NATIVE_ORDERS
    else:
        # Each channel has a label: up to 6 in FFmpeg's own order, from 65536 on in none.
        count = min(64, int.from_bytes(data[place[0] + 12 : place[0] + 16], "big"))
        places = range(place[0] + 16, place[0] + 16 + 20 * count, 20)
        labels = [int.from_bytes(data[at : at + 4], "big") for at in places]
        is_ordered = labels == sorted(set(labels)) and (labels[-1:] <= [6] or labels[0] > 0xFFFF)
        is_taken = count < 2 or is_ordered
    if not is_taken:
        raise DataError(
            f"its channels lie in the order {tag >> 16} of CoreAudio, which PyAV can't take: "
            "convert it, as by `ffmpeg -i FILE FILE.wav`",
            offset=place[0],
        )


def _without_user_data(config: bytes) -> bytes:
    """An `hvcC` without the text that x265 puts into it: 1.4 kB, which no decoder needs.

    Anything but such a box (ISO/IEC 14496-15, 8.3.3.1) is returned unchanged.
    """
    if len(config) < 23:
        return config
    at, arrays = 23, []
    for _ in range(config[22]):
        if at + 3 > len(config):
            return config
        head, num_units = config[at], int.from_bytes(config[at + 1 : at + 3])
        at += 3
        units = []
        for _ in range(num_units):
            size = int.from_bytes(config[at : at + 2])
            unit, at = config[at : at + 2 + size], at + 2 + size
            if at > len(config):
                return config
            if head & 63 != _PREFIX_SEI or unit[4:5] != bytes([_USER_DATA]):
                units.append(unit)
        if units:
            arrays.append(struct.pack(">BH", head, len(units)) + b"".join(units))
    return config[:22] + bytes([len(arrays)]) + b"".join(arrays) + config[at:]


def _convert_config(codec: str, config: bytes) -> bytes:
    """A configuration as FFmpeg's decoders take it."""
    if codec == "hevc":
        return _without_user_data(config)
    if codec == "flac":
        return config[8:42]  # STREAMINFO without the headers around it
    if codec == "opus" and len(config) >= 11:
        _, channels, skip, rate, gain = struct.unpack_from(">BBHIh", config)
        return struct.pack("<8sBBHIh", b"OpusHead", 1, channels, skip, rate, gain) + config[10:]
    return config


def _read_esds(data: bytes) -> tuple[str, bytes] | None:
    """Codec and configuration of an elementary stream descriptor (ISO/IEC 14496-1)."""
    codec, at = None, 0
    while at + 2 <= len(data):
        tag, at = data[at], at + 1
        size = 0
        for _ in range(4):
            if at >= len(data):
                return None
            byte, at = data[at], at + 1
            size = size << 7 | byte & 0x7F
            if not byte & 0x80:
                break
        if tag == 3:
            if at + 3 > len(data):
                return None
            flags, at = data[at + 2], at + 3
            if flags & 0xE0:
                return None  # parts that no mp4 file has
        elif tag == 4:
            if at + 13 > len(data):
                return None
            codec, at = _OBJECTS.get(data[at]), at + 13
        elif tag == 5:
            return None if codec is None else (codec, data[at : at + size])
        else:
            at += size
    return None if codec is None else (codec, b"")
