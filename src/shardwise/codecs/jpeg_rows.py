"""The first rows of a JPEG file: its rest is not decoded.

libjpeg decodes as many rows as the frame header says. In a copy with a smaller height there it
stops early, and then looks for the end marker alone: a file that is cut is still an error, bytes
that are damaged below the rows are not seen.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_headers import jpeg_segments

__all__ = ["find_height", "read_first_rows"]

# Colours at half the height are upsampled with those of the row below.
_ROWS_BELOW = 2
# Rows of the largest block: with fewer to leave out, nothing is saved.
_LEAST_SAVED = 16
_RESTART_INTERVAL, _START_OF_SCAN = 0xDD, 0xDA
_SEQUENTIAL = (0xC0, 0xC1)
# What is wrong with a copy. Only the first complaint is told, so there was none before it.
_REST_IS_LEFT = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")


def find_height(data: memoryview) -> int:
    """Where the height of a JPEG stands, of the kinds whose first rows can be decoded; else 0.

    That is a gray or three-coloured one whose only scan holds all of it from top to bottom. One
    with restart markers is not: they would end the search for its end.
    """
    frame = 0
    try:
        for marker, at in jpeg_segments(data):
            if marker in _SEQUENTIAL:
                frame = at
            elif marker == _START_OF_SCAN:
                channels = data[frame + 5] if frame else 0
                return frame + 1 if channels in (1, 3) and data[at] == channels else 0
            elif marker == _RESTART_INTERVAL:
                return 0
    except (struct.error, IndexError, ValueError):
        pass  # decoding it will say what is wrong
    return 0


def read_first_rows(
    package: Any, data: memoryview, mode: str, shape: tuple[int, int, int], num_rows: int, at: int
) -> NDArray[np.uint8] | None:
    """The first rows of a JPEG, or None: decode it whole, and see what is wrong with it.

    Args:
        package: simplejpeg.
        data: the whole file.
        mode: "gray", "rgb" or "rgba".
        shape: height, width and channels of the whole image.
        num_rows: how many rows are needed; more may come.
        at: from `find_height`.
    """
    height = num_rows + _ROWS_BELOW
    if shape[0] - height < _LEAST_SAVED:
        return None
    copy = bytearray(data)
    copy[at : at + 2] = height.to_bytes(2, "big")
    pixels = np.empty((height, *shape[1:]), np.uint8)
    try:
        package.decode_jpeg(copy, mode.upper(), buffer=pixels)
    except ValueError as exc:
        if _REST_IS_LEFT.fullmatch(str(exc)) is None:
            return None
    return pixels
