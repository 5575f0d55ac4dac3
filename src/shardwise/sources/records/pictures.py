"""Pictures that are stored as pixels, and lists of payloads: what MDS and LitData both have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_list", "raw_picture"]

# Pillow's mode -> dtype and channels.
_MODES = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3),
    "HSV": ("u1", 3), "LAB": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4),
    "I;16": ("<u2", 1), "I": ("<i4", 1), "F": ("<f4", 1),
}  # fmt: skip


def raw_picture(data: bytes) -> NDArray[Any]:
    """The pixels of a picture, `[height, width]` or `[height, width, channels]`.

    Raises:
        ValueError: it is damaged, or of a mode that is not byte-aligned.
    """
    if len(data) < 12:
        raise ValueError(f"{len(data)} bytes are no picture: its size alone has 12")
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii", "replace")
    if mode not in _MODES:
        raise ValueError(f"a picture of mode {mode!r}; read are {', '.join(_MODES)}")
    dtype, channels = _MODES[mode]
    pixels = data[12 + length :]
    expected = width * height * channels * np.dtype(dtype).itemsize
    if len(pixels) != expected:
        raise ValueError(f"{len(pixels)} bytes of pixels, {width} x {height} {mode} has {expected}")
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(pixels, dtype).reshape(shape).copy()


def cut_list(data: bytes, *, skip: int = 0) -> list[bytes]:
    """The parts of a list: their number and their sizes (uint32), then the parts.

    Args:
        data: the list.
        skip: bytes before it.

    Raises:
        ValueError: it is damaged.
    """
    if len(data) < skip + 4:
        raise ValueError(f"{len(data)} bytes are no list")
    (count,) = np.frombuffer(data, "<u4", 1, skip).tolist()
    at = skip + 4 + 4 * count
    if len(data) < at:
        raise ValueError(f"{len(data)} bytes are no list of {count} parts")
    parts = []
    for size in np.frombuffer(data, "<u4", count, skip + 4).tolist():
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"a list of {at} bytes in {len(data)}")
    return parts
