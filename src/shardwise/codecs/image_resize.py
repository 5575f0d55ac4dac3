"""Resize pixels by cykooz-resizer (fast_image_resize), OpenCV or Pillow.

"bilinear" and "bicubic" are Pillow's and torchvision's antialiased filters. cykooz-resizer has them
with SIMD and gives torchvision's bytes; Pillow, where that is missing, is one level off in places.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from shardwise.base.errors import MissingExtraError
from shardwise.codecs.image_backends import Pixels, find_package

# cykooz-resizer's names of filters and pixels; Pillow's of filters.
_FILTERS = {"bilinear": "bilinear", "bicubic": "catmull_rom"}
_KINDS = {"uint8": "U8", "uint16": "U16", "float32": "F32"}
_PILLOW = {"bilinear": "BILINEAR", "bicubic": "BICUBIC", "nearest": "NEAREST", "area": "BOX"}
# Rows are copied in bands, so that copies of a large image stay in the cache: 12 megapixels to
# 224 x 224 take 14 ms in place of 60.
_BAND_BYTES = 1 << 20
_KEPT_BYTES = 32 << 20


def resize_pixels(
    pixels: Pixels, height: int, width: int, *, interpolation: str, out: Pixels | None = None
) -> Pixels:
    """Resize `[height, width, channels]` of any dtype by an `interpolation` of `image`.

    `out` is written into where the package can; the result need not be it. Without OpenCV, "linear"
    is Pillow's "bilinear".
    """
    size = height, width
    if pixels.shape[:2] == size:
        return pixels
    shrinks = height <= pixels.shape[0] and width <= pixels.shape[1]
    if interpolation in _FILTERS:
        resizer = find_package("cykooz_resizer")
        if resizer is not None:
            return _convolve(resizer, pixels, size, interpolation)
    elif (cv2 := find_package("cv2")) is not None:
        how = cv2.INTER_NEAREST_EXACT if interpolation == "nearest" else cv2.INTER_LINEAR
        if interpolation == "area" and shrinks:
            how = cv2.INTER_AREA
        elif how == cv2.INTER_LINEAR:
            # Average two by two pixels while both sides are twice too large; the rest is linear.
            while pixels.shape[0] >= 2 * height and pixels.shape[1] >= 2 * width:
                half = pixels.shape[0] // 2, pixels.shape[1] // 2
                pixels = pixels[: 2 * half[0], : 2 * half[1]]
                if half == size:
                    how = cv2.INTER_AREA
                    break
                pixels = _resize_into(cv2, pixels, half, cv2.INTER_AREA, None)
        return _resize_into(cv2, pixels, size, how, out)
    pillow = find_package("PIL.Image")
    if pillow is None:
        raise MissingExtraError(
            f"no package that resizes images by {interpolation!r} is installed", extra="image"
        )
    name = "bilinear" if interpolation == "area" and not shrinks else interpolation
    how = getattr(pillow.Resampling, _PILLOW.get(name, "BILINEAR"))
    return _resize_pillow(pillow, pixels, size, how)


def _convolve(package: Any, pixels: Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
    stored_height, stored_width, channels = pixels.shape
    height, width = size
    kind = _KINDS[pixels.dtype.name] + (f"x{channels}" if channels > 1 else "")
    # One each image takes 1 µs; threads can't share one.
    resize = functools.partial(package.Resizer().resize, options=_options(package, interpolation))
    make = functools.partial(package.ImageData, pixel_type=package.PixelType[kind])
    rows = max(1, _BAND_BYTES // pixels[0].nbytes)
    bands = []
    # One call would filter rows first, and round otherwise than torchvision.
    for at in range(0, stored_height, rows):
        band = pixels[at : at + rows]
        wide = make(width, len(band))
        resize(make(stored_width, len(band), pixels=band.tobytes()), wide)
        bands.append(wide)
    if len(bands) > 1:
        joined = b"".join(band.get_buffer() for band in bands)
        wide = make(width, stored_height, pixels=joined)
    made = make(width, height)
    resize(wide, made)
    return np.frombuffer(made.get_buffer(), pixels.dtype).reshape(height, width, channels)


@functools.cache
def _options(package: Any, interpolation: str) -> Any:
    # malloc keeps twice what was once freed in one piece. Where that is less than an image, 500
    # page faults double the time of one of 500 x 400.
    np.empty(_KEPT_BYTES // 2, np.uint8)
    how = package.ResizeAlg.convolution(package.FilterType[_FILTERS[interpolation]])
    return package.ResizeOptions(resize_alg=how, use_alpha=False)


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
        is_whole = pixels.dtype == np.uint16
        for shape in ((width, pixels.shape[0]), (width, height)):
            planes = (np.ascontiguousarray(each, np.float32) for each in np.moveaxis(pixels, 2, 0))
            wide = np.dstack([pillow.fromarray(each).resize(shape, how) for each in planes])
            pixels = wide.round().clip(0, 65535).astype(np.uint16) if is_whole else wide
        return pixels
    # As CMYK, four channels are resized each by itself; as RGBA, Pillow would weigh by alpha.
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[pixels.shape[2]]
    image = pillow.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes())
    return np.asarray(image.resize((width, height), how)).reshape(height, width, pixels.shape[2])
