"""Pixels to another size, by cykooz-resizer (fast_image_resize), OpenCV or Pillow.

"bilinear" and "bicubic" are Pillow's and torchvision's antialiased filters: as wide as a new pixel,
columns first, rounded in between. cykooz-resizer has them with SIMD and gives torchvision's bytes;
Pillow, where that is not installed, differs by one level in a few values.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import MissingExtraError
from shardwise.codecs.image_backends import Pixels, find_package

# Of the antialiased filters: cykooz-resizer's name and Pillow's.
_FILTERS = {"bilinear": ("bilinear", "BILINEAR"), "bicubic": ("catmull_rom", "BICUBIC")}
_KINDS = {"uint8": "U8", "uint16": "U16", "float32": "F32"}
# Rows are copied in bands, so that copies of a large image stay in the cache: 12 megapixels to
# 224 x 224 take 14 ms in place of 55.
_BAND_BYTES = 1 << 20


def resize_pixels(
    pixels: Pixels, height: int, width: int, *, interpolation: str, out: Pixels | None = None
) -> Pixels:
    """Resize uint8, uint16 or float32 `[height, width, channels]` to exactly `height` x `width`.

    Args:
        pixels: of 1, 3 or 4 channels, each resized by itself.
        height: rows of the result.
        width: its columns.
        interpolation: "bilinear" or "bicubic", antialiased; "area" averages the whole area under
            each new pixel where both sides shrink, and is linear elsewhere; "linear" averages two
            by two pixels while both sides are at least twice too large (an odd last row or column
            is left out), and the rest is linear; "nearest" takes the pixel under the middle of each
            new one. Without OpenCV, Pillow's "linear" is its "bilinear".
        out: where to write where the package can; the result need not be it.

    Raises:
        MissingExtraError: no package that resizes so is installed.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if interpolation in _FILTERS:
        resizer = find_package("cykooz_resizer")
        if resizer is not None:
            return _convolve(resizer, pixels, (height, width), interpolation)
    elif (cv2 := find_package("cv2")) is not None:
        if interpolation == "nearest":
            return _resize_into(cv2, pixels, (height, width), cv2.INTER_NEAREST_EXACT, out)
        return _resize_opencv(cv2, pixels, (height, width), interpolation == "area", out)
    pillow = find_package("PIL.Image")
    if pillow is None:
        raise MissingExtraError(
            f"no package that resizes images by {interpolation!r} is installed", extra="image"
        )
    shrinks = height <= pixels.shape[0] and width <= pixels.shape[1]
    names = {"nearest": "NEAREST", "area": "BOX" if shrinks else "BILINEAR"}
    name = names.get(interpolation) or _FILTERS.get(interpolation, ("", "BILINEAR"))[1]
    return _resize_pillow(pillow, pixels, (height, width), getattr(pillow.Resampling, name))


def _convolve(package: Any, pixels: Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
    stored_height, stored_width, channels = pixels.shape
    height, width = size
    kind = _KINDS[pixels.dtype.name] + (f"x{channels}" if channels > 1 else "")
    # One each image takes 1 us; threads can't share one.
    resize = functools.partial(package.Resizer().resize, options=_options(package, interpolation))
    make = functools.partial(package.ImageData, pixel_type=package.PixelType[kind])
    rows = max(1, _BAND_BYTES // pixels[0].nbytes)
    bands = []
    # In one call it would filter rows first, and round otherwise than torchvision.
    for at in range(0, stored_height, rows):
        band = pixels[at : at + rows]
        wide = make(width, len(band))
        resize(make(stored_width, len(band), pixels=band.tobytes()), wide)
        bands.append(wide.get_buffer())
    made = make(width, height)
    resize(make(width, stored_height, pixels=b"".join(bands)), made)
    return np.frombuffer(made.get_buffer(), pixels.dtype).reshape(height, width, channels)


@functools.cache
def _options(package: Any, interpolation: str) -> Any:
    how = package.ResizeAlg.convolution(package.FilterType[_FILTERS[interpolation][0]])
    return package.ResizeOptions(resize_alg=how, use_alpha=False)


def _resize_opencv(
    cv2: Any, pixels: Pixels, size: tuple[int, int], is_area: bool, out: Pixels | None
) -> Pixels:
    height, width = size
    if is_area and height <= pixels.shape[0] and width <= pixels.shape[1]:
        how = cv2.INTER_AREA
    else:
        how = cv2.INTER_LINEAR
        while pixels.shape[0] >= 2 * height and pixels.shape[1] >= 2 * width:
            half = pixels.shape[0] // 2, pixels.shape[1] // 2
            even = pixels[: 2 * half[0], : 2 * half[1]]
            to = out if half == size else None
            pixels = _resize_into(cv2, even, half, cv2.INTER_AREA, to)
        if pixels.shape[:2] == (height, width):
            return pixels
    return _resize_into(cv2, pixels, size, how, out)


def _resize_into(
    cv2: Any, pixels: Pixels, size: tuple[int, int], how: int, out: Pixels | None
) -> Pixels:
    # An array that OpenCV makes itself takes the GIL once more.
    into: Pixels = np.empty((*size, pixels.shape[2]), pixels.dtype) if out is None else out
    cv2.resize(pixels, size[::-1], dst=into, interpolation=how)
    return into


def _resize_pillow(pillow: Any, pixels: Pixels, size: tuple[int, int], how: Any) -> Pixels:
    height, width = size
    if pixels.dtype != np.uint8:
        # Pillow has float32 of one channel alone.
        for shape in ((width, pixels.shape[0]), (width, height)):
            planes = (np.ascontiguousarray(each, np.float32) for each in np.moveaxis(pixels, 2, 0))
            wide = np.dstack([pillow.fromarray(each).resize(shape, how) for each in planes])
            is_whole = pixels.dtype == np.uint16
            pixels = wide.round().clip(0, 65535).astype(np.uint16) if is_whole else wide
        return pixels
    # As CMYK, four channels are resized each by itself; as RGBA, Pillow would weigh by alpha.
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[pixels.shape[2]]
    image = pillow.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes())
    resized: NDArray[np.uint8] = np.asarray(image.resize((width, height), how))
    return resized.reshape(height, width, pixels.shape[2])
