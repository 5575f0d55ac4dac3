"""Parts of JPEG images by TurboJPEG 3, which leaves out the transforms of blocks outside them.

ctypes calls the system's libturbojpeg, or else that of the PyPI package turbojpeg: neither
simplejpeg nor OpenCV nor Pillow decodes parts. It checks a part against its own reading of the
header before it writes a byte.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_backends import CHANNELS

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
        self, data: NDArray[np.uint8], mode: str, *, top: int, left: int, height: int, width: int
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
            at, size = data.ctypes.data, data.size
            if library.tj3DecompressHeader(handle, at, size) or library.tj3SetCroppingRegion(
                handle, _Region(left, top, width, height)
            ):
                raise ValueError(self._complaint(handle))
            pixels = np.empty((height, width, CHANNELS[mode]), np.uint8)
            failed = self._decompress(
                handle, at, size, pixels.ctypes.data, pixels.strides[0], _PIXEL_FORMATS[mode]
            )
            return pixels, self._complaint(handle) if failed else ""
        finally:
            library.tj3Destroy(handle)

    def _complaint(self, handle: int) -> str:
        text: bytes = self._library.tj3GetErrorStr(handle)
        return text.decode(errors="replace")


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
