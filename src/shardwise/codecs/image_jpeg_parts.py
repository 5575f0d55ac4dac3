"""A part of a JPEG's pixels, without decoding the rest of the image.

libjpeg decodes as many rows as the frame header states. In a copy with a smaller height there it
stops early, and then looks for the end marker alone: a file that is cut is still an error, damage
that shows only below the rows is not seen. Of the rows above and the columns beside the part,
TurboJPEG 3 reads the codes only, and gives the same pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_backends import CHANNELS, find_package
from shardwise.codecs.image_crop import CropBox
from shardwise.codecs.image_headers import ImageHeader, jpeg_segments
from shardwise.codecs.image_turbojpeg import TurboJpeg, find_turbojpeg

# Colours at half the height or width are upsampled with those of the next row or column.
_MARGIN = 1
# Columns whose half is at most 2 are upsampled in another way.
_LEAST_WIDTH = 5
# Rows of the largest block: with fewer to leave out, nothing is saved.
_LEAST_SAVED = 16
_RESTART_INTERVAL, _START_OF_SCAN = 0xDD, 0xDA
_SEQUENTIAL = (0xC0, 0xC1)
# The complaint about a copy. Only the first one is reported, so nothing was noticed before it.
_REST_IS_LEFT = "extraneous bytes before marker 0xd9"


def may_end_early(data: memoryview, frame_at: int) -> bool:
    """Whether the first rows of a JPEG can be decoded without the others.

    That is so for a gray or three-coloured one whose only scan holds all of it from top to bottom.
    Restart markers would end the search for the end marker.
    """
    try:
        if data[frame_at - 3] not in _SEQUENTIAL:
            return False
        # Search from the start: the restart interval may stand before the frame header.
        for marker, at in jpeg_segments(data):
            if marker == _START_OF_SCAN:
                return data[at] == data[frame_at + 5] and data[at] in (1, 3)
            if marker == _RESTART_INTERVAL:
                return False
    except (IndexError, ValueError):
        pass  # decoding it will raise the error
    return False


def read_part(
    data: memoryview, header: ImageHeader, box: CropBox, *, mode: str
) -> NDArray[np.uint8] | None:
    """The pixels of a part of a file that `may_end_early`, not mirrored yet.

    Returns:
        uint8 `[height, width, channels]` of the box. None: decode the file whole, and see what is
        wrong with it.
    """
    turbojpeg, simplejpeg = find_turbojpeg(), find_package("simplejpeg")
    num_rows = _num_rows(header, box)
    if turbojpeg is None and (simplejpeg is None or header.height - num_rows < _LEAST_SAVED):
        return None
    copy = np.frombuffer(data, np.uint8).copy()
    copy[header.frame_at + 1 : header.frame_at + 3] = divmod(num_rows, 256)
    if turbojpeg is not None:
        return _read_region(turbojpeg, copy, header, box, mode)
    return _read_rows(simplejpeg, copy, (num_rows, header.width), box, mode)


def _num_rows(header: ImageHeader, box: CropBox) -> int:
    """The number of the image's rows that are needed."""
    return min(box.top + box.height + _MARGIN, header.height)


def _read_region(
    turbojpeg: TurboJpeg, copy: NDArray[np.uint8], header: ImageHeader, box: CropBox, mode: str
) -> NDArray[np.uint8] | None:
    # The first component's sampling factor is the largest but in odd files, which TurboJPEG
    # refuses.
    block_width = 8 * max(1, int(copy[header.frame_at + 7]) >> 4)
    top = max(box.top - _MARGIN, 0)
    left = max(box.left - _MARGIN, 0) // block_width * block_width
    height = _num_rows(header, box) - top
    width = min(box.left + box.width + _MARGIN, header.width) - left
    if width < _LEAST_WIDTH:
        return None
    try:
        pixels, complaint = turbojpeg.decode_part(
            copy, mode, top=top, left=left, height=height, width=width
        )
    except ValueError:
        return None
    if complaint and not complaint.endswith(_REST_IS_LEFT):
        return None
    return CropBox(box.top - top, box.left - left, box.height, box.width).cut(pixels)


def _read_rows(
    simplejpeg: Any, copy: NDArray[np.uint8], shape: tuple[int, int], box: CropBox, mode: str
) -> NDArray[np.uint8] | None:
    pixels = np.empty((*shape, CHANNELS[mode]), np.uint8)
    try:
        simplejpeg.decode_jpeg(copy, mode.upper(), buffer=pixels)
    except ValueError as exc:
        if not str(exc).endswith(_REST_IS_LEFT):
            return None
    return box.cut(pixels)
