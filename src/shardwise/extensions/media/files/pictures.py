"""Decoded pictures to the rows of a clip: resized, turned, cut, in the layout asked for.

Rotation is applied. Pictures of another size than the header's (a stream may change it) are resized
to the header's. Pixels of other than square shape stay as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

LAYOUTS = ("TCHW", "THWC", "CTHW")


@dataclass(frozen=True)
class PictureForm:
    """What pictures of one video become.

    Attributes:
        height, width: of the stored picture.
        rotation: degrees counterclockwise, a multiple of 90.
        size: (height, width) of the output; None for the picture's, turned.
        fit: "stretch", or "crop": the shorter side fits, and the centre is cut out.
        layout: one of `LAYOUTS`.
    """

    height: int
    width: int
    rotation: int = 0
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "TCHW"

    @property
    def upright(self) -> tuple[int, int]:
        """Height and width of the turned picture."""
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
        """The shape of a clip."""
        return clip_shape(num_frames, *self.output, self.layout)

    def place(self, pixels: Pixels, out: NDArray[Any], row: int) -> None:
        """Turn and cut a picture `[*scaled, 3]` and write it as frame `row` of a clip."""
        if self.rotation:
            pixels = np.rot90(pixels, self.rotation // 90)
        height, width = self.output
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
        pixels = pixels[top : top + height, left : left + width]
        if self.layout == "THWC":
            out[row] = pixels
            return
        planes = out[row] if self.layout == "TCHW" else out[:, row]
        for channel in range(3):
            planes[channel] = pixels[:, :, channel]


def clip_shape(num_frames: int, height: int, width: int, layout: str) -> tuple[int, ...]:
    """The shape of a clip in a layout."""
    sizes = {"T": num_frames, "C": 3, "H": height, "W": width}
    return tuple(sizes[letter] for letter in layout)
