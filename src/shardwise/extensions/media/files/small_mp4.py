"""A small mp4 in memory, of just the coded frames that a clip needs.

Times in it are made up: frame k in the order of showing has time k, so that a decoder's count of
frames is ours. It has no edit list and no rotation. The first frame alone is marked as a key frame,
so that nothing but the beginning is sought.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.media.files.boxes import full_box, make_box
from shardwise.extensions.media.files.track import Track

FRAME_TICKS = 1000
SECOND_TICKS = 25 * FRAME_TICKS  # 25 frames a second, which no one sees
_MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


@dataclass(frozen=True, eq=False)
class SmallMp4:
    """An mp4 file in memory.

    Attributes:
        data: the file.
        pts: int64 `[frames]`, when each coded frame is shown, in decode order, in ticks.
    """

    data: bytes
    pts: NDArray[np.int64]


def small_mp4(
    track: Track, samples: NDArray[np.int64], payloads: Sequence[bytes | memoryview]
) -> SmallMp4:
    """An mp4 file of some coded frames, the first one a key frame, of a described track.

    `samples` are their numbers in decode order.
    """
    count = len(samples)
    shown = np.argsort(np.argsort(track.columns.pts[samples], kind="stable"), kind="stable")
    # Decoded at their number, shown never before they are decoded.
    delay = int((np.arange(count) - shown).max(initial=0))
    shifts = (shown + delay - np.arange(count)) * FRAME_TICKS
    sizes = np.array([len(payload) for payload in payloads])
    duration = count * FRAME_TICKS
    tables = [
        full_box(b"stsd", track.description[4:]),
        full_box(b"stts", struct.pack(">III", 1, count, FRAME_TICKS)),
        full_box(b"ctts", _pairs(np.ones(count, np.int64), shifts)),
        full_box(b"stss", struct.pack(">II", 1, 1)),
        full_box(b"stsz", struct.pack(">II", 0, count) + sizes.astype(">u4").tobytes()),
        full_box(b"stsc", struct.pack(">IIII", 1, 1, count, 1)),
    ]
    brand = make_box(b"ftyp", b"isom\0\0\2\0isomiso2mp41")
    length = len(brand) + len(_moov(track, tables, duration, 0)) + 8
    head = struct.pack(">I4s", 8 + int(sizes.sum()), b"mdat")
    data = b"".join([brand, _moov(track, tables, duration, length), head, *payloads])
    return SmallMp4(data, (shown + delay) * FRAME_TICKS)


def _pairs(counts: NDArray[np.int64], values: NDArray[np.int64]) -> bytes:
    rows = np.stack([counts, values], axis=1)
    return struct.pack(">I", len(rows)) + rows.astype(">u4").tobytes()


def _moov(track: Track, tables: list[bytes], duration: int, offset: int) -> bytes:
    """The box, whose payloads begin at `offset`; its length does not depend on that."""
    stbl = make_box(b"stbl", *tables, full_box(b"stco", struct.pack(">II", 1, offset)))
    url = make_box(b"url ", b"\0\0\0\1")
    dinf = make_box(b"dinf", full_box(b"dref", struct.pack(">I", 1) + url))
    minf = make_box(b"minf", make_box(b"vmhd", b"\0\0\0\1" + bytes(8)), dinf, stbl)
    mdhd = full_box(b"mdhd", struct.pack(">IIIIHH", 0, 0, SECOND_TICKS, duration, 0x55C4, 0))
    hdlr = full_box(b"hdlr", b"\0\0\0\0vide" + bytes(12) + b"v\0")
    size = struct.pack(">II", track.width << 16, track.height << 16)
    numbers = struct.pack(">IIIII", 0, 0, 1, 0, duration)
    tkhd = make_box(b"tkhd", b"\0\0\0\3", numbers, bytes(16), _MATRIX, size)
    times = struct.pack(">IIIIIH", 0, 0, SECOND_TICKS, duration, 0x10000, 0x100)
    mvhd = full_box(b"mvhd", times + bytes(10) + _MATRIX + bytes(24) + struct.pack(">I", 2))
    trak = make_box(b"trak", tkhd, make_box(b"mdia", mdhd, hdlr, minf))
    return make_box(b"moov", mvhd, trak)
