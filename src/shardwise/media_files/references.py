"""Which coded frames no other frame needs, and which begin afresh: read from their NAL units.

Frames that no other needs may be left out where they are not wanted (H.264 only: ITU-T H.264,
7.4.1, nal_ref_idc is 0 in all slices of such a picture). Behind an instantaneous decoding refresh
(IDR) a decoder uses nothing of before, so that what lies before it may be left out, too.
"""

from __future__ import annotations

from shardwise.media_files.track import Track

__all__ = ["is_refresh", "is_unreferenced", "length_bytes"]

# Where H.264's and HEVC's configurations hold the size of the lengths.
_LENGTH_AT = {"h264": 4, "hevc": 21}


def length_bytes(track: Track) -> int | None:
    """Bytes before each NAL unit of H.264 or HEVC; None where the frames have no such lengths."""
    at = _LENGTH_AT.get(track.codec)
    if at is None or len(track.config) < at + 3 or track.config[0] != 1:
        return None
    return (track.config[at] & 3) + 1


def is_unreferenced(payload: bytes | memoryview, num_length_bytes: int) -> bool:
    """Whether a coded H.264 picture is of no use to any other picture."""
    at, seen = 0, False
    while at + num_length_bytes < len(payload):
        size = int.from_bytes(payload[at : at + num_length_bytes], "big")
        header = payload[at + num_length_bytes]
        if 1 <= header & 31 <= 5:
            if header >> 5 & 3:
                return False
            seen = True
        at += num_length_bytes + size
    return seen and at == len(payload)


def is_refresh(codec: str, payload: bytes | memoryview, num_length_bytes: int) -> bool:
    """Whether a coded picture is an IDR of H.264 or HEVC; its first slice says it."""
    at = 0
    while at + num_length_bytes < len(payload):
        header = payload[at + num_length_bytes]
        if codec == "h264" and 1 <= header & 31 <= 5:
            return header & 31 == 5
        if codec == "hevc" and header >> 1 & 63 < 32:
            return header >> 1 & 63 in (19, 20)
        at += num_length_bytes + int.from_bytes(payload[at : at + num_length_bytes], "big")
    return False
