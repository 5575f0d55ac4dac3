"""Decoded pictures to the rows of a clip: resized, turned, cut, in the requested layout.

Rotation is applied. Pictures of another size than the header's (a stream may change it) are resized
to the header's. Pixels of other than square shape stay as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]

# Choices that `sw.video` and `Dataset.clips` share.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "fit": ("stretch", "crop"),
    "layout": ("TCHW", "THWC", "CTHW"),
    "mode": ("rgb", "gray"),
    "dtype": ("uint8", "uint16", "float32"),
}
_FORMATS = {"rgb": ("rgb24", "rgb48le"), "gray": ("gray", "gray16le")}


@dataclass(frozen=True)
class PictureForm:
    """The output form of pictures that are stored as height, width and rotation counterclockwise.

    The options are those of `sw.video`; without a size it is the picture's, turned.
    """

    height: int
    width: int
    rotation: int = 0
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "TCHW"
    mode: str = "rgb"
    dtype: str = "uint8"

    @property
    def pixel_format(self) -> str:
        """FFmpeg's name of the pixels to decode to: of 8 bits, or of 16."""
        return _FORMATS[self.mode][self.dtype != "uint8"]

    @property
    def upright(self) -> tuple[int, int]:
        turned = self.rotation % 180 == 90
        return (self.width, self.height) if turned else (self.height, self.width)

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.upright if self.size is None else self.size

    @property
    def scaled(self) -> tuple[int, int]:
        """Height and width to which the stored picture is resized, before it is turned and cut."""
        height, width = self.output
        if self.fit == "crop" and self.size is not None:
            full_height, full_width = self.upright
            if full_height * width <= full_width * height:
                width = max(width, round(full_width * height / full_height))
            else:
                height = max(height, round(full_height * width / full_width))
        return (width, height) if self.rotation % 180 == 90 else (height, width)

    def shape(self, num_frames: int) -> tuple[int, ...]:
        return clip_shape(num_frames, *self.output, self.layout, self.mode)

    def place(self, pixels: Pixels, out: NDArray[Any], row: int) -> None:
        """Turn and cut a picture `[*scaled, channels]` and write it as frame `row` of a clip."""
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if self.dtype == "float32":
            pixels = pixels / np.float32(65535)
        if self.rotation:
            pixels = np.rot90(pixels, self.rotation // 90)
        height, width = self.output
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
        pixels = pixels[top : top + height, left : left + width]
        if self.layout == "THWC":
            out[row] = pixels
            return
        planes = out[row] if self.layout == "TCHW" else out[:, row]
        for channel, plane in enumerate(planes):
            plane[...] = pixels[:, :, channel]


def clip_shape(
    num_frames: int, height: int, width: int, layout: str, mode: str = "rgb"
) -> tuple[int, ...]:
    """The shape of a clip in a layout."""
    sizes = {"T": num_frames, "C": 3 if mode == "rgb" else 1, "H": height, "W": width}
    return tuple(sizes[letter] for letter in layout)
