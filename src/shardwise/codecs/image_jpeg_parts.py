"""A part of a JPEG's pixels, without decoding the rest of the image.

libjpeg decodes as many rows as the frame header states. In a copy with a smaller height there it
stops early, and then looks for the end marker alone: a file that is cut is still an error, damage
that shows only below the rows is not seen. Of the rows above and the columns beside the part,
TurboJPEG 3 reads the codes only, and gives the same pixels. ctypes calls the system's libturbojpeg,
or that of the PyPI package turbojpeg, since simplejpeg, OpenCV and Pillow decode no parts.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_backends import CHANNELS, find_package
from shardwise.codecs.image_crop import CropBox
from shardwise.codecs.image_headers import ImageHeader, find_segment

# Names and numbers of turbojpeg.h.
_INIT_DECOMPRESS = 1
_PARAM_STOP_ON_WARNING = 0
_PIXEL_FORMATS = {"rgb": 0, "gray": 6, "rgba": 7}


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


_INT, _PLACE, _SIZE = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES = {
    "tj3Init": (_PLACE, [_INT]),
    "tj3Destroy": (None, [_PLACE]),
    "tj3Set": (_INT, [_PLACE, _INT, _INT]),
    "tj3GetErrorStr": (ctypes.c_char_p, [_PLACE]),
    "tj3DecompressHeader": (_INT, [_PLACE, _PLACE, _SIZE]),
    "tj3SetCroppingRegion": (_INT, [_PLACE, _Region]),
    "tj3Decompress8": (_INT, [_PLACE, _PLACE, _SIZE, _PLACE, _INT, _INT]),
}


class TurboJpeg:
    """TurboJPEG 3 from one shared library."""

    def __init__(self, path: str) -> None:
        # The GIL is released for the decoding, and kept for calls that take microseconds: getting
        # it back may take as long as another thread's switch interval, 5 ms.
        self._decompress = _declare(ctypes.CDLL(path)).tj3Decompress8
        self._library = _declare(ctypes.PyDLL(path))

    def decode_part(
        self, data: bytearray, mode: str, *, top: int, left: int, height: int, width: int
    ) -> tuple[NDArray[np.uint8], str]:
        """Decode a part of a JPEG; `left` is a multiple of the width of the file's blocks.

        Rows and columns at its borders may differ from those of the whole image where colours are
        stored at half the resolution: ask for one more on each side.

        Returns:
            uint8 `[height, width, channels]`, and the first complaint about the file, or
            an empty text.
        """
        library = self._library
        # One each image takes 3 µs. After some errors it would decode no other file.
        handle = library.tj3Init(_INIT_DECOMPRESS)
        if not handle:
            raise MemoryError("TurboJPEG could not make a decompressor")
        try:
            library.tj3Set(handle, _PARAM_STOP_ON_WARNING, 1)
            at, size = _address(data), len(data)
            if library.tj3DecompressHeader(handle, at, size) or library.tj3SetCroppingRegion(
                handle, _Region(left, top, width, height)
            ):
                raise ValueError(self._complaint(handle))
            pixels = np.empty((height, width, CHANNELS[mode]), np.uint8)
            failed = self._decompress(
                handle, at, size, _address(pixels), pixels.strides[0], _PIXEL_FORMATS[mode]
            )
            return pixels, self._complaint(handle) if failed else ""
        finally:
            library.tj3Destroy(handle)

    def _complaint(self, handle: int) -> str:
        text: bytes = self._library.tj3GetErrorStr(handle)
        return text.decode(errors="replace")


def _address(memory: Any) -> Any:
    """The argument of a function for writable memory; an array's `ctypes` takes thrice the time."""
    return ctypes.byref(ctypes.c_char.from_buffer(memory))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def find_turbojpeg() -> TurboJpeg | None:
    """TurboJPEG 3, or None if it is not installed."""
    import importlib.metadata

    try:
        files = importlib.metadata.files("turbojpeg") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [str(file.locate()) for file in files if file.name.startswith("libturbojpeg")]
    for path in ("libturbojpeg.so.0", *paths):
        try:
            return TurboJpeg(path)
        except (OSError, AttributeError):
            continue  # not there, or older than 3.0
    return None


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
        marker, at = find_segment(data, (_RESTART_INTERVAL, _START_OF_SCAN))
        return marker == _START_OF_SCAN and data[at] == data[frame_at + 5] and data[at] in (1, 3)
    except (struct.error, IndexError, ValueError):
        return False  # decoding it will raise the error


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
    copy = bytearray(data)
    copy[header.frame_at + 1 : header.frame_at + 3] = num_rows.to_bytes(2, "big")
    if turbojpeg is not None:
        return _read_region(turbojpeg, copy, header, box, mode)
    return _read_rows(simplejpeg, copy, (num_rows, header.width), box, mode)


def _num_rows(header: ImageHeader, box: CropBox) -> int:
    """The number of the image's rows that are needed."""
    return min(box.top + box.height + _MARGIN, header.height)


def _read_region(
    turbojpeg: TurboJpeg, copy: bytearray, header: ImageHeader, box: CropBox, mode: str
) -> NDArray[np.uint8] | None:
    # The first component's sampling factor is the largest but in odd files, which TurboJPEG
    # refuses.
    block_width = 8 * max(1, copy[header.frame_at + 7] >> 4)
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
    simplejpeg: Any, copy: bytearray, shape: tuple[int, int], box: CropBox, mode: str
) -> NDArray[np.uint8] | None:
    pixels = np.empty((*shape, CHANNELS[mode]), np.uint8)
    try:
        simplejpeg.decode_jpeg(copy, mode.upper(), buffer=pixels)
    except ValueError as exc:
        if not str(exc).endswith(_REST_IS_LEFT):
            return None
    return box.cut(pixels)
