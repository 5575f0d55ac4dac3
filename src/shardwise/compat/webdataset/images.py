"""Image fields to arrays, tensors or Pillow images, as `.decode("rgb")` and its kin ask for.

JPEG files in "rgb" and "rgba" are decoded by shardwise's own codec, which gives the same pixels as
Pillow in two thirds of the time; all else by Pillow. Only extensions of images are claimed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from shardwise.codecs import image
from shardwise.codecs.image_backends import Pixels, write_planes
from shardwise.codecs.image_headers import is_plain_jpeg
from shardwise.pillow_import import import_pillow

# What Pillow decodes by itself. It also knows the names of formats that hold other things (HDF5,
# GRIB, BUFR, FITS, MPEG, PostScript, Windows metafiles): those fields are not images to us.
IMAGE_EXTENSIONS = (  # noqa: SIM905 - fifty words are easier to read in a row
    "apng blp bmp bw cur dcx dds dib eps flc fli ftc ftu gbr gif icb icns ico iim im j2c j2k jfif "
    "jp2 jpc jpe jpeg jpf jpg jpx msp pbm pcd pcx pgm png pnm ppm psd pxr ras rgb rgba sgi tga tif "
    "tiff vda vst webp xbm xpm"
).split()

# spec: (kind of result, kind of elements, colours)
imagespecs: dict[str, tuple[str, str | None, str]] = {
    "l8": ("numpy", "uint8", "l"),
    "rgb8": ("numpy", "uint8", "rgb"),
    "rgba8": ("numpy", "uint8", "rgba"),
    "l": ("numpy", "float", "l"),
    "rgb": ("numpy", "float", "rgb"),
    "rgba": ("numpy", "float", "rgba"),
    "torchl8": ("torch", "uint8", "l"),
    "torchrgb8": ("torch", "uint8", "rgb"),
    "torchrgba8": ("torch", "uint8", "rgba"),
    "torchl": ("torch", "float", "l"),
    "torchrgb": ("torch", "float", "rgb"),
    "torch": ("torch", "float", "rgb"),
    "torchrgba": ("torch", "float", "rgba"),
    "pill": ("pil", None, "l"),
    "pil": ("pil", None, "rgb"),
    "pilrgb": ("pil", None, "rgb"),
    "pilrgba": ("pil", None, "rgba"),
}

_JPEG = {colours: image(colours, layout="HWC") for colours in ("rgb", "rgba")}


class ImageHandler:
    """A decoder of image fields; it leaves fields with other extensions to the next decoder.

    The spec names the result: `l`, `rgb` or `rgba`, as a NumPy array `[height, width, channels]`
    of float32 from 0 to 1; with `8` behind it, of uint8; with `torch` before it, as a tensor
    `[channels, height, width]`; with `pil` before it, as a Pillow image. `l` has no channel axis.

    Raises:
        ValueError: there is no such spec in `imagespecs`.
    """

    def __init__(self, imagespec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> None:
        if imagespec not in imagespecs:
            known = ", ".join(imagespecs)
            raise ValueError(f"Unknown imagespec: {imagespec}; there are {known}")
        self.imagespec = imagespec
        self.extensions = set(extensions)

    def __repr__(self) -> str:
        return f"ImageHandler({self.imagespec!r})"

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode a field; None if its extension is none of `extensions`."""
        if key.rpartition(".")[2].lower() not in self.extensions:
            return None
        kind, elements, colours = imagespecs[self.imagespec]
        if kind == "pil":
            return _pillow_image(data, colours)
        pixels: Any = _pixels(data, colours)
        if kind == "torch":
            planes = np.empty((*pixels.shape[2:], *pixels.shape[:2]), np.uint8)
            if pixels.ndim == 3:
                write_planes(pixels, planes)
            else:
                planes[:] = pixels
            pixels = planes
        if elements == "float":
            pixels = np.divide(pixels, np.float32(255), dtype=np.float32)
        return torch.from_numpy(pixels) if kind == "torch" else pixels


def _pixels(data: bytes, colours: str) -> Pixels:
    """The image as uint8 `[height, width(, channels)]`."""
    codec = _JPEG.get(colours)
    if codec is not None and is_plain_jpeg(memoryview(data)):
        try:
            return codec(data)
        except ValueError:
            # Damaged, or larger than the codec allows: Pillow has settings of the user's for both.
            pass
    return np.asarray(_pillow_image(data, colours))


def _pillow_image(data: bytes, colours: str) -> Any:
    with import_pillow().open(io.BytesIO(data)) as opened:
        opened.load()
        return opened.convert(colours.upper())


imagehandler = ImageHandler
