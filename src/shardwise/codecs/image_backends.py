"""Image files to pixels, and pixels to another size, by simplejpeg, OpenCV or Pillow.

The first package that is installed is used: JPEG by simplejpeg, else OpenCV, else Pillow, and so
are those of rare subsamplings, as CMYK files have, which simplejpeg does not read; PNG,
WebP and BMP by OpenCV, else Pillow; GIF and TIFF by Pillow, because OpenCV multiplies a TIFF's
colours by its alpha and turns it by its tag. All release the GIL and may run in several threads.
Each gives the same pixels as stored: no EXIF orientation, no blending with alpha, the high byte of
16-bit samples, the first frame of several. The number of OpenCV's threads is not touched here.

Pixels are uint8 `[height, width, channels]` throughout, with 1 (gray), 3 (rgb) or 4 (rgba)
channels.
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
from shardwise.codecs.image_headers import ImageHeader, check_complete, find_orientation

Pixels = NDArray[np.uint8]

CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}
_PILLOW_MODES = {"gray": "L", "rgb": "RGB", "rgba": "RGBA"}
_READERS = {
    "jpeg": ("simplejpeg", "cv2", "PIL.Image"),
    "png": ("cv2", "PIL.Image"),
    "webp": ("cv2", "PIL.Image"),
    "bmp": ("cv2", "PIL.Image"),
    "gif": ("PIL.Image",),
    "tiff": ("PIL.Image",),
}


@functools.cache
def find_package(name: str) -> Any:
    """Import an optional package; None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def _say_slow() -> None:
    """Say once a process that JPEG files are read by the slowest of the three packages."""
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
    out: Pixels | None = None,
) -> Pixels:
    """Decode an image file to uint8 `[height, width, channels]`.

    A JPEG is decoded at 1 / `shrink` (1, 2, 4 or 8) of its size, rounded up, in the DCT. `out` is
    decoded into where the package can; the result need not be it.
    """
    reader, package = _first_reader(header.format)
    expected = (-(-header.height // shrink), -(-header.width // shrink), CHANNELS[mode])
    pixels: Pixels | None = None
    if reader == "simplejpeg":
        pixels = _read_simplejpeg(package, data, mode, expected, out)
        if pixels is None:
            reader, package = _first_reader("jpeg", start=1)
    if pixels is None and reader == "cv2":
        pixels = _read_opencv(package, data, header, mode, shrink)
    elif pixels is None:
        if header.format == "jpeg" and find_package("simplejpeg") is None:
            _say_slow()
        pixels = _read_pillow(package, data, header, mode, shrink)
    if pixels.shape != expected:
        raise ValueError(
            f"the {header.format} header promises {expected} (height, width, channels), "
            f"the decoder made {pixels.shape}: the file is damaged"
        )
    return pixels


def _first_reader(image_format: str, *, start: int = 0) -> tuple[str, Any]:
    """The first package that decodes a format; those behind it are not imported."""
    for name in _READERS[image_format][start:]:
        package = find_package(name)
        if package is not None:
            return name, package
    raise MissingExtraError(
        f"no package that decodes {image_format} images is installed", extra="image"
    )


def _read_simplejpeg(
    package: Any, data: memoryview, mode: str, expected: tuple[int, int, int], out: Pixels | None
) -> Pixels | None:
    """Decode a JPEG; None for another package: TurboJPEG has no name for its subsampling."""
    height, width, _ = expected
    try:
        # The least height and width pick the scale; strict (the default) makes cut files errors.
        pixels: Pixels = package.decode_jpeg(
            data, mode.upper(), min_height=height, min_width=width, buffer=out
        )
    except ValueError as exc:
        others = _READERS["jpeg"][1:]
        if "determine subsampling" in str(exc) and any(map(find_package, others)):
            return None
        raise ValueError(
            f"simplejpeg could not decode the jpeg of {len(data)} bytes: {exc}"
        ) from exc
    return pixels


def _read_opencv(
    package: Any, data: memoryview, header: ImageHeader, mode: str, shrink: int
) -> Pixels:
    check_complete(data, header)
    if mode == "rgba" and header.format != "jpeg":
        flags = package.IMREAD_UNCHANGED
    else:
        if shrink > 1:
            name = f"IMREAD_REDUCED_{'GRAYSCALE' if mode == 'gray' else 'COLOR'}_{shrink}"
            flags = getattr(package, name)
        else:
            flags = package.IMREAD_GRAYSCALE if mode == "gray" else package.IMREAD_COLOR
        if mode != "gray":  # red first, in place of OpenCV's blue
            flags = (flags & ~package.IMREAD_COLOR) | package.IMREAD_COLOR_RGB
        flags |= package.IMREAD_IGNORE_ORIENTATION
    try:
        image = package.imdecode(np.frombuffer(data, np.uint8), flags)
    except package.error as exc:
        raise ValueError(f"OpenCV could not decode the {header.format}: {exc}") from exc
    if image is None:
        raise ValueError(
            f"OpenCV could not decode the {header.format} of {len(data)} bytes: "
            "it is damaged, cut, or of a kind that OpenCV does not read"
        )
    pixels: Pixels = image
    if flags == package.IMREAD_UNCHANGED:
        if image.dtype == np.uint16:
            image = (image >> 8).astype(np.uint8)
        kinds = {1: "GRAY2RGBA", 3: "BGR2RGBA", 4: "BGRA2RGBA"}
        kind = kinds[1 if image.ndim == 2 else image.shape[2]]
        pixels = package.cvtColor(image, getattr(package, f"COLOR_{kind}"))
    elif mode == "rgba":
        pixels = package.cvtColor(image, package.COLOR_RGB2RGBA)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _read_pillow(
    package: Any, data: memoryview, header: ImageHeader, mode: str, shrink: int
) -> Pixels:
    check_complete(data, header)
    if header.format == "tiff":
        data = _upright_tiff(data)
    pillow_mode = _PILLOW_MODES[mode]
    try:
        with package.open(io.BytesIO(data), formats=[header.format.upper()]) as image:
            if header.format == "jpeg":
                image.draft(pillow_mode, (header.width // shrink, header.height // shrink))
            pixels = np.array(_to_8_bits(package, image).convert(pillow_mode))
    except Exception as exc:
        # Nearly every type: what Pillow raises for a damaged file depends on the format.
        raise ValueError(f"Pillow could not decode the {header.format}: {exc}") from exc
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _to_8_bits(package: Any, image: Any) -> Any:
    """Take the high byte of 16-bit samples; Pillow's own conversion clips them."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return package.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("32 bits a sample have no 8-bit form: decode it by a function of your own")
    return image


def _upright_tiff(data: memoryview) -> memoryview:
    """Take the orientation out of a TIFF: Pillow would apply it, to this format alone."""
    orientation, at = find_orientation(data, "tiff")
    if orientation == 1:
        return data
    copy = bytearray(data)
    copy[at : at + 2] = b"\1\0" if data[0] == ord("I") else b"\0\1"
    return memoryview(copy)


def resize_pixels(
    pixels: Pixels,
    height: int,
    width: int,
    *,
    antialias: bool,
    nearest: bool = False,
    out: Pixels | None = None,
) -> Pixels:
    """Resize to exactly `height` x `width`.

    While both sides are at least twice too large, pixels are averaged two by two (which leaves an
    odd last row or column out); the rest is linear. With `antialias`, shrinking averages the whole
    area under each new pixel. Pillow, where OpenCV is missing, always averages. `nearest` takes
    the pixel under the middle of each new one, and mixes none.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = find_package("cv2")
    if cv2 is not None:
        if nearest:
            return _resize_into(cv2, pixels, (height, width), cv2.INTER_NEAREST_EXACT, out)
        return _resize_opencv(cv2, pixels, (height, width), antialias, out)
    pillow = find_package("PIL.Image")
    if pillow is None:
        raise MissingExtraError("no package that resizes images is installed", extra="image")
    how = pillow.Resampling.NEAREST if nearest else pillow.Resampling.BILINEAR
    if antialias and height <= pixels.shape[0] and width <= pixels.shape[1]:
        how = pillow.Resampling.BOX
    return _resize_pillow(pillow, pixels, (height, width), how)


def _resize_opencv(
    cv2: Any, pixels: Pixels, size: tuple[int, int], antialias: bool, out: Pixels | None
) -> Pixels:
    height, width = size
    if antialias and height <= pixels.shape[0] and width <= pixels.shape[1]:
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
    into: Pixels = np.empty((*size, pixels.shape[2]), np.uint8) if out is None else out
    cv2.resize(pixels, size[::-1], dst=into, interpolation=how)
    return into


def _resize_pillow(pillow: Any, pixels: Pixels, size: tuple[int, int], how: Any) -> Pixels:
    height, width = size
    # As CMYK, four channels are resized each by itself; as RGBA, Pillow would weigh by alpha.
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[pixels.shape[2]]
    image = pillow.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes())
    resized: Pixels = np.asarray(image.resize((width, height), how))
    return resized.reshape(height, width, pixels.shape[2])


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
    # Ten times as fast as a reversed copy.
    mirrored: Pixels = cv2.flip(pixels, 1, dst=out)
    return mirrored.reshape(pixels.shape)


def write_planes(pixels: Pixels, planes: Pixels) -> None:
    """Copy `[height, width, channels]` to `[channels, height, width]`."""
    cv2 = find_package("cv2")
    if cv2 is not None and pixels.shape[2] > 1 and planes.flags.c_contiguous:
        # Seven times as fast as a strided copy. OpenCV writes into arrays that fit.
        cv2.split(pixels, list(planes))
    else:
        np.copyto(planes, pixels.transpose(2, 0, 1))
