"""The order of showing of a container without times of showing: avi, and mkv with codecs of avi.

FFmpeg guesses such times from those of decoding, which is wrong where a codec has B-frames.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.pyav_packets import decoded_frames
from shardwise.extensions.media.files.track import Track

# The start code of a picture of MPEG-4 (ISO/IEC 14496-2, 6.2.5); its kind is in the next two bits.
_VOP = re.compile(rb"\x00\x00\x01\xb6")
_BIDIRECTIONAL = 2
# That of MPEG-1 and MPEG-2 (ISO/IEC 13818-2, 6.2.3): the kind, plus 1, follows 10 bits.
_PICTURE = re.compile(rb"\x00\x00\x01\x00")
_KINDS_TELL = ("mpeg4", "mpeg1video", "mpeg2video")
# A picture that is not coded: start code, kind, time, and the bit that marks it.
_EMPTY_BYTES = 7
REPAIR = "encode the file again, as by `ffmpeg -i FILE -fps_mode cfr -c:v libx264 FILE.mp4`"


class _Picture:
    """A part of a packet that has several pictures; all else is the packet's."""

    def __init__(self, packet: Any, start: int, stop: int) -> None:
        self._packet = packet
        self._payload = bytes(packet)[start:stop]
        self.size = stop - start
        self.is_keyframe = packet.is_keyframe and not start

    def __bytes__(self) -> bytes:
        return self._payload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packet, name)


def unpacked(codec: str, packets: list[Any]) -> list[Any]:
    """Packets of one picture each, of XviD and DivX streams that pack two into one ("packed").

    A packet of no picture stands for each that came early; like FFmpeg's decoder, this leaves out
    one at the end that none stands for. (FFmpeg's filter `mpeg4_unpack_bframes` takes every packet
    of up to 19 bytes for an empty one; pictures without a change are as small.)
    """
    if codec != "mpeg4" or all(len(_VOP.findall(bytes(packet))) < 2 for packet in packets):
        return packets
    pictures: list[Any] = []
    num_early = 0
    for packet in packets:
        starts = [found.start() for found in _VOP.finditer(bytes(packet))]
        if num_early and packet.size <= _EMPTY_BYTES:
            num_early -= 1
            continue
        num_early += max(0, len(starts) - 1)
        bounds = [0, *starts[1:], packet.size]
        pictures += [_Picture(packet, *pair) for pair in pairwise(bounds)]
    return pictures[: len(packets)]


def check_order(track: Track, payloads: list[bytes]) -> None:
    """Refuse times of showing that no order of MPEG-4's pictures can have.

    A picture between two others is decoded after both. `ffmpeg -c:v libxvid` writes such times.
    """
    reference = -1
    for number, payload in enumerate(payloads):
        if not _is_between(payload):
            reference = number
        elif reference >= 0 and track.columns.pts[number] >= track.columns.pts[reference]:
            raise DataError(
                f"mpeg4: by the container's times coded frame {number} is shown after coded frame "
                f"{reference}, and by the codec before it: {REPAIR}"
            )


def may_reorder(codec: Any, payloads: list[bytes]) -> bool:
    """Whether pictures may be shown in another order than that of decoding."""
    if codec.canonical_name == "mpeg4":
        return any(map(_is_between, payloads))
    return bool(codec.reorder)


def _is_between(payload: bytes, codec: str = "mpeg4") -> bool:
    """Whether a picture of MPEG is coded from one shown before it and one shown after it."""
    start = _VOP if codec == "mpeg4" else _PICTURE
    found = start.search(payload)
    if not found or found.end() + 1 >= len(payload):
        return False
    kind = (
        payload[found.end()] >> 6 if codec == "mpeg4" else (payload[found.end() + 1] >> 3 & 7) - 1
    )
    return kind == _BIDIRECTIONAL


def _order_by_kinds(codec: str, payloads: list[bytes]) -> list[int] | None:
    """The order of showing by the kinds of MPEG's pictures; None where decoding has to tell it."""
    if codec not in _KINDS_TELL or any(len(each) <= _EMPTY_BYTES for each in payloads):
        return None
    is_between = [_is_between(each, codec) for each in payloads]
    if any(is_between[:2]):  # a decoder leaves them out
        return None
    order: list[int] = []
    reference = 0
    for number in range(1, len(payloads)):
        order.append(number if is_between[number] else reference)
        reference = reference if is_between[number] else number
    return [*order, reference]


def timed_by_decoding(
    track: Track, payloads: list[bytes], dts: list[int | None], limits: Limits
) -> Track:
    """A track whose frames are shown in the order in which a decoder gives them.

    Their times are those of decoding, moved by the frames that the order makes a decoder wait.
    """
    numbers = _order_by_kinds(track.codec, payloads)
    if numbers is None:
        numbers = [number for number, _ in decoded_frames(track, list(enumerate(payloads)), limits)]
    if len(set(numbers)) != len(numbers) or not numbers or min(numbers) < 0:
        raise DataError(
            "the container has no times of showing, and decoding does not tell the order either: "
            + REPAIR
        )
    step = max(1, int(np.median(track.columns.duration)))
    times = np.arange(len(payloads), dtype=np.int64) * step
    if all(time is not None for time in dts):
        times = np.sort(np.array(dts, np.int64))[: len(payloads)]
    # A frame is shown when all are decoded that are shown before it: `delay` frames later.
    delay = int((np.array(numbers) - np.arange(len(numbers))).max())
    times = np.append(times, times[-1] + step * np.arange(1, delay + 1))
    shown = np.zeros(len(payloads), bool)
    shown[numbers] = True
    pts = times[: len(payloads)].copy()
    pts[numbers] = times[delay : delay + len(numbers)]
    return replace(track, columns=replace(track.columns, pts=pts, shown=shown))
