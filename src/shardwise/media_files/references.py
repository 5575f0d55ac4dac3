"""Which coded frames no other frame needs: they may be left out where they are not wanted.

H.264 only (ITU-T H.264, 7.4.1: nal_ref_idc is 0 in all slices of such a picture).
"""

from __future__ import annotations

from shardwise.media_files.track import Track

__all__ = ["is_unreferenced", "length_bytes"]


def length_bytes(track: Track) -> int | None:
    """Bytes before each NAL unit of an H.264 track; None where its frames have no such lengths."""
    if track.codec != "h264" or len(track.config) < 7 or track.config[0] != 1:
        return None
    return (track.config[4] & 3) + 1


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
