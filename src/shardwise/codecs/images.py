"""The image decoder: JPEG, PNG, WebP, GIF, BMP and TIFF files to uint8 or float32 arrays.

With a size, every image of a field has one shape, and is written straight into its row of the
batch. The call and `decode_into` run the same code, so they give the same bytes (I5).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_backends import (
    CHANNELS,
    Pixels,
    read_pixels,
    resize_pixels,
    write_planes,
)
from shardwise.codecs.image_headers import ImageHeader, find_orientation, probe

__all__ = ["Image", "image"]

DEFAULT_MAX_PIXELS = 178_956_970  # where Pillow refuses too: half a GiB of RGB
_CHOICES = {
    "mode": ("rgb", "gray", "rgba"),
    "fit": ("stretch", "crop"),
    "layout": ("CHW", "HWC"),
    "dtype": ("uint8", "float32"),
}


@dataclass(frozen=True, repr=False)
class Image:
    """A decoder of image files; `image` makes it and says what its attributes mean."""

    mode: str = "rgb"
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "CHW"
    dtype: str = "uint8"
    orient: bool = False
    antialias: bool = False
    max_pixels: int = DEFAULT_MAX_PIXELS

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"image({name}={value!r}): must be one of {choices}")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"image(size={self.size}): height and width must be 1 or more")
        if self.max_pixels < 1:
            raise ValueError(f"image(max_pixels={self.max_pixels}): must be 1 or more")
        if self.size is not None and self.size[0] * self.size[1] > self.max_pixels:
            raise ValueError(
                f"image(size={self.size}): more pixels than max_pixels={self.max_pixels}"
            )

    def __repr__(self) -> str:
        arguments = [repr(self.mode)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                arguments.append(f"{field.name}={value!r}")
        return f"image({', '.join(arguments)})"

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every image; None without a size."""
        if self.size is None:
            return None
        return self._shape(*self.size), np.dtype(self.dtype)

    def __call__(self, data: bytes | memoryview) -> NDArray[Any]:
        """Decode one file."""
        if self.row is None:
            pixels = self._upright(memoryview(data))
            if self.layout == "HWC" and self.dtype == "uint8":
                return pixels
            out: NDArray[Any] = np.empty(self._shape(*pixels.shape[:2]), self.dtype)
            self._write(pixels, out)
            return out
        out = np.empty(*self.row)
        self._decode_sized(memoryview(data), out)
        return out

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Decode one file into an array of `row`'s shape and dtype, such as a row of a batch."""
        if self.row is None:
            raise ValueError(f"{self!r}.decode_into needs a size: image(size=(height, width))")
        if (out.shape, out.dtype) != self.row:
            raise ValueError(
                f"{self!r} writes {self.row[1]} of shape {self.row[0]}, "
                f"the array to write into has {out.dtype} of shape {out.shape}"
            )
        self._decode_sized(memoryview(data), out)

    def _shape(self, height: int, width: int) -> tuple[int, ...]:
        channels = CHANNELS[self.mode]
        if self.layout == "CHW":
            return channels, height, width
        return height, width, channels

    def _probe(self, data: memoryview) -> ImageHeader:
        header = probe(data)
        if header.height * header.width > self.max_pixels:
            raise ValueError(
                f"the {header.format} header promises {header.height} x {header.width} pixels, "
                f"more than max_pixels={self.max_pixels}: raise it if you trust the data"
            )
        return header

    def _upright(self, data: memoryview) -> Pixels:
        """Decode at the stored size, turned if that is asked for."""
        header = self._probe(data)
        pixels = read_pixels(data, header, mode=self.mode)
        if self.orient:
            pixels = _turn(pixels, find_orientation(data, header.format)[0])
        return pixels

    def _decode_sized(self, data: memoryview, out: NDArray[Any]) -> None:
        assert self.size is not None
        header = self._probe(data)
        orientation = find_orientation(data, header.format)[0] if self.orient else 1
        height, width = self.size
        # uint8 HWC rows are what the packages write themselves: no copy is made then.
        in_place = self.layout == "HWC" and self.dtype == "uint8" and out.flags.c_contiguous
        place = out if in_place else None
        exact = orientation == 1 and (header.height, header.width) == self.size
        pixels = read_pixels(
            data,
            header,
            mode=self.mode,
            shrink=self._shrink(header, turned=orientation >= 5),
            out=place if exact else None,
        )
        pixels = _turn(pixels, orientation)
        if self.fit == "crop":
            pixels = _centre(pixels, height, width)
        pixels = resize_pixels(pixels, height, width, antialias=self.antialias, out=place)
        if place is None or not np.may_share_memory(pixels, place):
            self._write(pixels, out)

    def _shrink(self, header: ImageHeader, *, turned: bool) -> int:
        """How far a JPEG may be shrunk in the DCT: by halves, never below the size asked for."""
        assert self.size is not None
        if header.format != "jpeg":
            return 1
        height, width = self.size[::-1] if turned else self.size
        for shrink in (8, 4, 2):
            if -(-header.height // shrink) >= height and -(-header.width // shrink) >= width:
                return shrink
        return 1

    def _write(self, pixels: Pixels, out: NDArray[Any]) -> None:
        """Copy pixels to `out` in the layout and dtype asked for."""
        if self.layout == "CHW":
            planes = out if self.dtype == "uint8" else np.empty(out.shape, np.uint8)
            write_planes(pixels, planes)
            pixels = planes
        if self.dtype == "float32":
            np.divide(pixels, np.float32(255), out=out)
        elif pixels is not out:
            np.copyto(out, pixels)


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation, 1 to 8, to pixels as stored."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    down = orientation in (3, 4, 7, 8)
    across = orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(pixels[:: -1 if down else 1, :: -1 if across else 1])


def _centre(pixels: Pixels, height: int, width: int) -> Pixels:
    """Cut out the largest centred part that has the aspect of `height` x `width`."""
    stored_height, stored_width = pixels.shape[:2]
    cut_height, cut_width = stored_height, stored_width
    if stored_height * width <= stored_width * height:
        cut_width = min(stored_width, max(1, round(stored_height * width / height)))
    else:
        cut_height = min(stored_height, max(1, round(stored_width * height / width)))
    top = (stored_height - cut_height) // 2
    left = (stored_width - cut_width) // 2
    return pixels[top : top + cut_height, left : left + cut_width]


def image(
    mode: Literal["rgb", "gray", "rgba"] = "rgb",
    *,
    size: int | tuple[int, int] | None = None,
    fit: Literal["stretch", "crop"] = "stretch",
    layout: Literal["CHW", "HWC"] = "CHW",
    dtype: Literal["uint8", "float32"] = "uint8",
    orient: bool = False,
    antialias: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Image:
    """Decode JPEG, PNG, WebP, GIF, BMP and TIFF files.

    Args:
        mode: "rgb" (3 channels), "gray" (1) or "rgba" (4). Alpha is dropped, not blended, for
            "rgb" and "gray"; images without alpha are opaque in "rgba". Palettes are resolved;
            16-bit samples give their high byte; 1-bit samples give 0 and 255.
        size: the exact size of the output, one number or (height, width); None keeps the image's.
            A JPEG at least twice as large is decoded at a half, a quarter or an eighth, never
            below this size.
        fit: "stretch" the whole image to the size, or "crop" its centre and keep the aspect (the
            shorter side fits).
        layout: "CHW" gives `[channels, height, width]`, "HWC" `[height, width, channels]`.
        dtype: "uint8", or "float32" from 0 to 1.
        orient: turn the image as its EXIF orientation says; else it stays as stored.
        antialias: average the whole area under each pixel when shrinking. It is smoother, and
            costs about as much as decoding does; without it, pixels are averaged two by two while
            that leaves enough, and the rest is linear.
        max_pixels: the largest image to decode, in height x width; a larger one is an error.

    Raises:
        ValueError: (when called) the file is damaged, cut, too large or of another format.
        MissingExtraError: (when called) no package that reads the format is installed.

    Examples:
        >>> image("rgb", size=224, fit="crop")
        image('rgb', size=(224, 224), fit='crop')
        >>> image(size=(240, 320)).row
        ((3, 240, 320), dtype('uint8'))
    """
    if size is not None:
        height, width = (size, size) if isinstance(size, int | np.integer) else size
        size = (int(height), int(width))
    return Image(mode, size, fit, layout, dtype, orient, antialias, max_pixels)
