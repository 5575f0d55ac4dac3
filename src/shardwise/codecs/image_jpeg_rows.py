"""The first rows of a JPEG file: its rest is not decoded.

libjpeg decodes as many rows as the frame header says. In a copy with a smaller height there it
stops early, and then looks for the end marker alone: a file that is cut is still an error, damage
that shows only below the rows is not seen. Much of it lies above: a wrong code shifts all later
ones, and is noticed where they end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_headers import jpeg_segments

__all__ = ["may_end_early", "read_first_rows"]

# Colours at half the height are upsampled with those of the row below.
_ROWS_BELOW = 1
# Rows of the largest block: with fewer to leave out, nothing is saved.
_LEAST_SAVED = 16
_RESTART_INTERVAL, _START_OF_SCAN = 0xDD, 0xDA
_SEQUENTIAL = (0xC0, 0xC1)
# The complaint about a copy. Only the first one is told, so nothing was noticed before it.
_REST_IS_LEFT = "extraneous bytes before marker 0xd9"


def may_end_early(data: memoryview, frame_at: int) -> bool:
    """Whether the first rows of a JPEG can be decoded without the others.

    That is so for a gray or three-coloured one whose only scan holds all of it from top to bottom.
    Restart markers would end the search for the end marker.

    Args:
        data: the whole file.
        frame_at: from its `ImageHeader`.
    """
    try:
        if data[frame_at - 3] not in _SEQUENTIAL:
            return False
        # From the beginning: the restart interval may stand before the frame header.
        for marker, at in jpeg_segments(data):
            if marker == _START_OF_SCAN:
                return data[at] == data[frame_at + 5] and data[at] in (1, 3)
            if marker == _RESTART_INTERVAL:
                return False
    except (IndexError, ValueError):
        pass  # decoding it will say what is wrong
    return False


def read_first_rows(
    package: Any,
    data: memoryview,
    mode: str,
    shape: tuple[int, int, int],
    *,
    num_rows: int,
    frame_at: int,
) -> NDArray[np.uint8] | None:
    """The first rows of a JPEG, or None: decode it whole, and see what is wrong with it.

    Args:
        package: simplejpeg.
        data: the whole file.
        mode: "gray", "rgb" or "rgba".
        shape: height, width and channels of the whole image.
        num_rows: how many rows are needed; more may come.
        frame_at: from its `ImageHeader`.
    """
    height = num_rows + _ROWS_BELOW
    if shape[0] - height < _LEAST_SAVED:
        return None
    copy = bytearray(data)
    copy[frame_at + 1 : frame_at + 3] = height.to_bytes(2, "big")
    pixels = np.empty((height, *shape[1:]), np.uint8)
    try:
        package.decode_jpeg(copy, mode.upper(), buffer=pixels)
    except ValueError as exc:
        if not str(exc).endswith(_REST_IS_LEFT):
            return None
    return pixels
