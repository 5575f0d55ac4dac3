"""Image decoders: image files to uint8, uint16 or float32 arrays.

With a size, every image of a field has one shape, and is written straight into its row of the
batch. The call and `decode_into` run the same code, so they give the same bytes (I5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice
from shardwise.base.columns import ChannelsLast, make_rows
from shardwise.codecs.image_backends import (
    CHANNELS,
    Pixels,
    mirror_pixels,
    read_pixels,
    turn_pixels,
    write_planes,
)
from shardwise.codecs.image_crop import CropBox, RandomCrop, centre
from shardwise.codecs.image_headers import ImageHeader, find_orientation, probe
from shardwise.codecs.image_jpeg_parts import may_end_early, read_part
from shardwise.codecs.image_resize import resize_pixels
from shardwise.codecs.protocol import check_row

DEFAULT_MAX_PIXELS = 178_956_970  # where Pillow refuses too: half a GiB of RGB
_CHOICES = {
    "mode": ("rgb", "gray", "rgba"),
    "fit": ("stretch", "crop"),
    "layout": ("CHW", "HWC", "channels_last"),
    "dtype": ("uint8", "uint16", "float32"),
    "interpolation": ("bilinear", "bicubic", "area", "nearest", "linear"),
    "decode_on": ("cpu", "device", "auto"),
}
# A JPEG is decoded at a half only for these: it would not be the result of torchvision's filters.
_HALVED = ("area", "linear")


class ImagePart(NamedTuple):
    """The box of a file's upright image to decode; the rows below may be left out or not."""

    header: ImageHeader
    orientation: int
    box: CropBox
    may_end_early: bool = False
    shrink: int = 1


@dataclass(frozen=True, repr=False)
class Image:
    """A decoder of image files; `image` makes it and documents its attributes."""

    mode: str = "rgb"
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "CHW"
    dtype: str = "uint8"
    orient: bool = False
    max_pixels: int = DEFAULT_MAX_PIXELS
    interpolation: str = "bilinear"
    decode_on: str = "cpu"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            is_size = isinstance(value, int | tuple)
            more = f"; did you mean size={value!r}?" if is_size else ""
            check_choice(name, value, choices, of="image", more=more)
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"image(size={self.size}): height and width must be 1 or more")
        if self.max_pixels < 1:
            raise ValueError(f"image(max_pixels={self.max_pixels}): must be 1 or more")
        if self.size is not None and self.size[0] * self.size[1] > self.max_pixels:
            raise ValueError(
                f"image(size={self.size}): more pixels than max_pixels={self.max_pixels}"
            )
        odd = self.size is None or self.mode == "rgba" or self.dtype == "uint16"
        if self.decode_on != "cpu" and (odd or self.interpolation not in ("bilinear", "bicubic")):
            raise ValueError(
                f"image({self.mode!r}, size={self.size}, interpolation={self.interpolation!r}, "
                f"dtype={self.dtype!r}, decode_on={self.decode_on!r}): a device makes uint8 or "
                "float32 rows of one size, rgb or gray, bilinear or bicubic: leave decode_on= out"
            )
        if self.mean is None and self.std is None:
            return
        if self.mean is None or self.std is None or self.dtype != "float32":
            raise ValueError(f"{self!r}: give both mean= and std=, and dtype='float32'")
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise ValueError(f"{self!r}: mean= and std= must be finite, and std= above 0")

    def __repr__(self) -> str:
        arguments = [repr(self.mode)]
        for each in fields(Image)[1:]:
            value = getattr(self, each.name)
            if value != each.default:
                arguments.append(f"{each.name}={value!r}")
        return f"image({', '.join(arguments)})"

    @cached_property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every image; None without a size."""
        if self.size is None:
            return None
        return self._shape(*self.size), np.dtype(self.dtype)

    @cached_property
    def _written_strides(self) -> tuple[int, ...] | None:
        """The strides of rows that the packages write; None if another dtype or layout is made."""
        if self.size is None or self.dtype != "uint8" or self.layout == "CHW":
            return None
        # OpenCV requires these strides if an axis has one entry, too.
        channels = CHANNELS[self.mode]
        across = channels * self.size[1]
        return (across, channels, 1) if self.layout == "HWC" else (1, across, channels)

    def __call__(self, data: bytes | memoryview) -> NDArray[Any]:
        if self.row is None:
            pixels = self._upright(memoryview(data))
            if self.layout == "HWC" and self.dtype == "uint8":
                return pixels
            out: NDArray[Any] = self._empty(*pixels.shape[:2])
            self._write(pixels, out)
            return out
        assert self.size is not None
        out = self._empty(*self.size)
        self.decode_drawn_into(data, out, self.draw(data))
        return out

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        self._check_row(out)
        self.decode_drawn_into(data, out, self.draw(data))

    def _check_row(self, out: NDArray[Any]) -> None:
        check_row(self, self.row, out, needs="a size: image(size=(height, width))")

    def _shape(self, height: int, width: int) -> tuple[int, ...]:
        channels = CHANNELS[self.mode]
        if self.layout == "HWC":
            return height, width, channels
        shape = channels, height, width
        return shape if self.layout == "CHW" else ChannelsLast(shape)

    def _empty(self, height: int, width: int) -> NDArray[Any]:
        row: NDArray[Any] = make_rows(1, (self._shape(height, width), np.dtype(self.dtype)))[0]
        return row

    def _measure(self, data: memoryview) -> tuple[ImageHeader, int]:
        """The header, and the orientation to apply."""
        header = probe(data)
        if header.height * header.width > self.max_pixels:
            raise ValueError(
                f"the {header.format} header promises {header.height} x {header.width} pixels, "
                f"more than max_pixels={self.max_pixels}: raise it if you trust the data"
            )
        return header, find_orientation(data, header.format)[0] if self.orient else 1

    def _upright(self, data: memoryview) -> Pixels:
        """Decode at the stored size, turned if that is requested."""
        header, orientation = self._measure(data)
        pixels = read_pixels(data, header, mode=self.mode, dtype=self.dtype)
        return turn_pixels(pixels, orientation)

    def draw(self, data: bytes | memoryview) -> ImagePart:
        """The part of a file to decode, at 1 / its `shrink` of the size; its header is read."""
        assert self.size is not None
        header, orientation = self._measure(memoryview(data))
        shrink = self._shrink(header, turned=orientation >= 5)
        size = _upright((-(-header.height // shrink), -(-header.width // shrink)), orientation)
        box = centre(size, *self.size) if self.fit == "crop" else CropBox(0, 0, *size)
        return ImagePart(header, orientation, box, False, shrink)

    def decode_drawn_into(
        self, data: bytes | memoryview, out: NDArray[Any], drawn: ImagePart
    ) -> None:
        """Decode as `decode_into` does after `draw`: cut, resize, mirror and write."""
        assert self.size is not None
        header, orientation, box, may_end_early, shrink = drawn
        data, place = memoryview(data), None
        if out.strides == self._written_strides:
            place = out if self.layout == "HWC" else out.transpose(1, 2, 0)
        pixels = read_part(data, header, box, mode=self.mode) if may_end_early else None
        if pixels is None:
            # A file that fits is decoded into its row.
            is_row = orientation == 1 and box[2:] == (*self.size, False)
            pixels = read_pixels(
                data,
                header,
                mode=self.mode,
                shrink=shrink,
                dtype=self.dtype,
                out=place if is_row else None,
            )
            if pixels is place:
                return
            if orientation != 1:
                pixels = turn_pixels(pixels, orientation)
            if pixels.shape[:2] != box[2:4]:
                pixels = box.cut(pixels)
        into = None if box.is_mirrored else place
        pixels = resize_pixels(pixels, *self.size, interpolation=self.interpolation, out=into)
        if box.is_mirrored:
            pixels = mirror_pixels(pixels, out=place)
        if pixels is not place:
            self._write(pixels, out)

    def _shrink(self, header: ImageHeader, *, turned: bool) -> int:
        """The factor to shrink a JPEG by in the DCT: by halves, never below the requested size."""
        assert self.size is not None
        if header.format != "jpeg" or self.interpolation not in _HALVED:
            return 1
        height, width = self.size[::-1] if turned else self.size
        if header.height < 2 * height - 1 or header.width < 2 * width - 1:
            return 1
        for shrink in (8, 4, 2):
            if -(-header.height // shrink) >= height and -(-header.width // shrink) >= width:
                return shrink
        return 1

    def _write(self, pixels: Pixels, out: NDArray[Any]) -> None:
        """Copy pixels to `out` in the requested layout and dtype."""
        channels_at = -1
        if self.layout == "CHW":
            planes = out if pixels.dtype == out.dtype else np.empty(out.shape, pixels.dtype)
            write_planes(pixels, planes)
            pixels, channels_at = planes, 0
        elif self.layout == "channels_last":
            out = out.transpose(1, 2, 0)
        if pixels.dtype == out.dtype:
            if pixels is not out:
                np.copyto(out, pixels)
        elif self.dtype == "float32":
            np.divide(pixels, np.float32(np.iinfo(pixels.dtype).max), out=out)
        else:
            np.multiply(pixels, np.uint16(257), out=out)
        if self.mean is not None and self.std is not None:
            channels = np.moveaxis(out, channels_at, -1)
            channels -= np.array(self.mean, np.float32)
            channels /= np.array(self.std, np.float32)


def _upright(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Height and width after the orientation is applied."""
    return size if orientation < 5 else (size[1], size[0])


@dataclass(frozen=True, repr=False)
class RandomCropImage(Image):
    """A keyed decoder of random parts of image files; `image` makes it.

    Attributes:
        crop: which part is taken, and resized to the size, which is there.
        stream: decoders of one stream take the same part of a sample's images.
    """

    crop: RandomCrop = field(default_factory=RandomCrop)
    stream: int = 0

    def __repr__(self) -> str:
        options = {**vars(self.crop), "stream": self.stream}
        defaults = {**vars(RandomCrop()), "stream": 0}
        shown = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
        return f"{super().__repr__()[:-1]}, {', '.join(['crop=' + repr('random'), *shown])})"

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> NDArray[Any]:  # type: ignore[override]
        """Decode one file, and cut out and resize the part that `rng` chooses."""
        assert self.size is not None
        out: NDArray[Any] = self._empty(*self.size)
        self.decode_drawn_into(data, out, self.draw(data, rng))
        return out

    def decode_into(  # type: ignore[override]
        self, data: bytes | memoryview, out: NDArray[Any], rng: np.random.Generator
    ) -> None:
        self._check_row(out)
        self.decode_drawn_into(data, out, self.draw(data, rng))

    def draw(  # type: ignore[override]
        self, data: bytes | memoryview, rng: np.random.Generator
    ) -> ImagePart:
        """The part of one file's image that `rng` chooses; nothing but its header is read."""
        view = memoryview(data)
        header, orientation = self._measure(view)
        # A part is cut out of the whole pixels: its borders seldom lie on those of a half.
        box = self.crop.draw(rng, *_upright((header.height, header.width), orientation))
        is_upright = header.format == "jpeg" and orientation == 1
        ends_early = is_upright and may_end_early(view, header.frame_at)
        return ImagePart(header, orientation, box, ends_early)
