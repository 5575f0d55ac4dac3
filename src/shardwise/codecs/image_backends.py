"""Decode image files to pixels by simplejpeg, OpenCV or Pillow: the first that is installed.

JPEG is decoded by simplejpeg, but for rare subsamplings, as CMYK files have; GIF, TIFF, AVIF and
HEIC by Pillow, because OpenCV multiplies a TIFF's colours by its alpha and turns it by its tag. All
release the GIL and may run in several threads, and give pixels as stored: no EXIF orientation, no
blending with alpha, the first frame of several. OpenCV's number of threads is not touched.

Pixels are `[height, width, channels]` with 1 (gray), 3 (rgb) or 4 (rgba) channels; uint8 unless
another dtype is requested of a PNG or TIFF of more bits.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import MissingExtraError
from shardwise.codecs.image_headers import (
    ImageHeader,
    check_complete,
    find_orientation,
    open_heif,
    tiff_entries,
)

Pixels = NDArray[Any]

# Of 64 x 64 pixels: numpy copies smaller ones faster than OpenCV is called.
_SMALL_BYTES = 3 << 12

CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}
_PILLOW_MODES = {"gray": "L", "rgb": "RGB", "rgba": "RGBA"}
_READERS = {
    "jpeg": ("simplejpeg", "cv2", "PIL.Image"),
    "png": ("cv2", "PIL.Image"),
    "webp": ("cv2", "PIL.Image"),
    "bmp": ("cv2", "PIL.Image"),
    "gif": ("PIL.Image",),
    "tiff": ("PIL.Image",),
    "avif": ("PIL.Image",),
    "heif": ("PIL.Image",),
}
_BITS_TAG, _COLOURS_TAG, _GRAY_OR_RGB = 258, 262, (1, 2)


@functools.cache
def find_package(name: str) -> Any:
    """Import an optional package; None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def _say_slow() -> None:
    """Warn once per process that JPEG files are read by the slowest of the three packages."""
    logging.getLogger("shardwise").warning(
        "JPEG files are decoded by Pillow, which takes more than twice the time of simplejpeg or "
        "OpenCV: pip install 'shardwise[image]' brings both"
    )


def read_pixels(
    data: memoryview,
    header: ImageHeader,
    *,
    mode: str,
    shrink: int = 1,
    dtype: str = "uint8",
    out: Pixels | None = None,
) -> Pixels:
    """Decode an image file to `[height, width, channels]`.

    A JPEG is decoded at 1 / `shrink` (1, 2, 4 or 8) of its size, rounded up, in the DCT. `out` is
    decoded into where the package can; the result need not be it. With another dtype than "uint8",
    a PNG or TIFF of more than 8 bits gives uint16 or float32, not scaled; every other file uint8.
    """
    expected = (-(-header.height // shrink), -(-header.width // shrink), CHANNELS[mode])
    pixels: Pixels | None = None
    if dtype != "uint8" and _is_deep(data, header):
        pixels = _read_deep(data, header, mode, dtype)
    for name in _READERS[header.format]:
        if pixels is not None:
            break
        package = find_package(name)  # later ones are not imported
        if package is None:
            continue
        if name == "simplejpeg":
            pixels = _read_simplejpeg(package, data, mode, expected, out)
        elif name == "cv2":
            pixels = _read_opencv(package, data, header, mode, shrink)
        else:
            if header.format == "jpeg" and find_package("simplejpeg") is None:
                _say_slow()
            pixels = _read_pillow(package, data, header, mode, shrink)
    if pixels is None:
        raise MissingExtraError(
            f"no package that decodes {header.format} images is installed", extra="image"
        )
    if pixels.shape != expected:
        raise ValueError(
            f"the {header.format} header promises {expected} (height, width, channels), "
            f"the decoder made {pixels.shape}: the file is damaged"
        )
    return pixels


def _read_simplejpeg(
    package: Any, data: memoryview, mode: str, expected: tuple[int, int, int], out: Pixels | None
) -> Pixels | None:
    """Decode a JPEG; None for another package: TurboJPEG has no name for its subsampling."""
    height, width, _ = expected
    into = out if out is not None and out.shape == expected else None
    try:
        # The least height and width pick the scale; strict (the default) makes cut files errors.
        pixels: Pixels = package.decode_jpeg(
            data, mode.upper(), min_height=height, min_width=width, buffer=into
        )
    except ValueError as exc:
        others = _READERS["jpeg"][1:]
        if "determine subsampling" in str(exc) and any(map(find_package, others)):
            return None
        raise ValueError(
            f"simplejpeg could not decode the jpeg of {len(data)} bytes: {exc}"
        ) from exc
    return pixels if into is None or pixels.shape != expected else into


def _is_deep(data: memoryview, header: ImageHeader) -> bool:
    """Whether a PNG or TIFF has more than 8 bits per sample."""
    if header.format != "tiff":
        return header.format == "png" and data[24] == 16
    tags = {tag: value for tag, value, _ in tiff_entries(data, 0)}
    is_deep = tags.get(_BITS_TAG, 1) > 8
    if is_deep and tags.get(_COLOURS_TAG) not in _GRAY_OR_RGB:
        raise ValueError("the tiff has deep samples that are neither gray nor RGB: use uint8")
    return is_deep


def _read_opencv(
    package: Any, data: memoryview, header: ImageHeader, mode: str, shrink: int
) -> Pixels:
    if mode == "rgba" and header.format != "jpeg":
        image = _decode_opencv(package, data, header, package.IMREAD_UNCHANGED)
        if image.dtype == np.uint16:
            image = (image >> 8).astype(np.uint8)
        return _convert_stored(package, image, mode)
    if shrink > 1:
        name = f"IMREAD_REDUCED_{'GRAYSCALE' if mode == 'gray' else 'COLOR'}_{shrink}"
        flags = getattr(package, name)
    else:
        flags = package.IMREAD_GRAYSCALE if mode == "gray" else package.IMREAD_COLOR
    if mode != "gray":  # red first, in place of OpenCV's blue
        flags = (flags & ~package.IMREAD_COLOR) | package.IMREAD_COLOR_RGB
    flags |= package.IMREAD_IGNORE_ORIENTATION
    pixels = _decode_opencv(package, data, header, flags)
    if mode == "rgba":
        pixels = package.cvtColor(pixels, package.COLOR_RGB2RGBA)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _read_deep(data: memoryview, header: ImageHeader, mode: str, dtype: str) -> Pixels:
    """Decode a PNG or TIFF of more than 8 bits per sample; Pillow has but one channel of them."""
    package = find_package("cv2")
    if package is None:
        raise MissingExtraError("OpenCV, which decodes 16 bits, is not installed", extra="image")
    data = _upright_tiff(data) if header.format == "tiff" else data
    image = _decode_opencv(package, data, header, package.IMREAD_UNCHANGED)
    if image.dtype != np.uint16:
        if dtype != "float32":
            raise ValueError(f"{image.dtype} samples have no {dtype} form: use dtype='float32'")
        image = image.astype(np.float32)
    return _convert_stored(package, image, mode)


def _decode_opencv(package: Any, data: memoryview, header: ImageHeader, flags: int) -> Pixels:
    check_complete(data, header)
    try:
        image: Pixels | None = package.imdecode(np.frombuffer(data, np.uint8), flags)
    except package.error as exc:
        raise ValueError(f"OpenCV could not decode the {header.format}: {exc}") from exc
    if image is None:
        raise ValueError(
            f"OpenCV could not decode the {header.format} of {len(data)} bytes: "
            "it is damaged, cut, or of a kind that OpenCV does not read"
        )
    return image


def _convert_stored(package: Any, image: Pixels, mode: str) -> Pixels:
    """Convert an image as stored, gray or blue first, to the channels of a mode."""
    stored = {1: "GRAY", 3: "BGR", 4: "BGRA"}[1 if image.ndim == 2 else image.shape[2]]
    if stored != mode.upper():
        image = package.cvtColor(image, getattr(package, f"COLOR_{stored}2{mode.upper()}"))
    return image if image.ndim == 3 else image[..., None]


def _read_pillow(
    package: Any, data: memoryview, header: ImageHeader, mode: str, shrink: int
) -> Pixels:
    check_complete(data, header)
    pillow_mode = _PILLOW_MODES[mode]
    try:
        with _open_pillow(package, data, header) as image:
            if header.format == "jpeg":
                image.draft(pillow_mode, (header.width // shrink, header.height // shrink))
            pixels = np.array(_to_8_bits(package, image).convert(pillow_mode))
    except Exception as exc:
        # Nearly every type: what Pillow raises for a damaged file depends on the format.
        raise ValueError(f"Pillow could not decode the {header.format}: {exc}") from exc
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _open_pillow(package: Any, data: memoryview, header: ImageHeader) -> Any:
    if header.format in ("avif", "heif"):
        return open_heif(data, header.format)
    if header.format == "tiff":
        data = _upright_tiff(data)
    return package.open(io.BytesIO(data), formats=[header.format.upper()])


def _to_8_bits(package: Any, image: Any) -> Any:
    """Take the high byte of 16-bit samples; Pillow's own conversion clips them."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return package.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("32 bits a sample have no 8-bit form: use dtype='float32'")
    return image


def _upright_tiff(data: memoryview) -> memoryview:
    """Take the orientation out of a TIFF: Pillow would apply it, to this format alone."""
    orientation, at = find_orientation(data, "tiff")
    if orientation == 1:
        return data
    copy = bytearray(data)
    copy[at : at + 2] = b"\1\0" if data[0] == ord("I") else b"\0\1"
    return memoryview(copy)


def turn_pixels(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation, 1 to 8, to pixels as stored."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    down = orientation in (3, 4, 7, 8)
    across = orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(pixels[:: -1 if down else 1, :: -1 if across else 1])


def mirror_pixels(pixels: Pixels, *, out: Pixels | None = None) -> Pixels:
    """Exchange left and right, into `out` where OpenCV is there."""
    cv2 = find_package("cv2")
    if cv2 is None:
        return np.ascontiguousarray(pixels[:, ::-1])
    into: Pixels = np.empty(pixels.shape, pixels.dtype) if out is None else out
    # Ten times as fast as a reversed copy.
    cv2.flip(pixels, 1, dst=into)
    return into


def write_planes(pixels: Pixels, planes: Pixels) -> None:
    """Copy `[height, width, channels]` to `[channels, height, width]`."""
    cv2 = find_package("cv2") if pixels.size > _SMALL_BYTES else None
    if cv2 is not None and pixels.shape[2] > 1 and planes.flags.c_contiguous:
        # Five times as fast as a strided copy. OpenCV writes into arrays that fit.
        cv2.split(pixels, list(planes))
    else:
        np.copyto(planes, pixels.transpose(2, 0, 1))
