"""Parts of an image that are cut out before resizing: the centre, or a random part.

A random part is torchvision's RandomResizedCrop, whose distribution goes back to the Inception
networks (Szegedy et al., "Going Deeper with Convolutions", CVPR 2015): its share of the area is
uniform, its aspect ratio is uniform on a logarithmic scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwise.codecs.image_backends import Pixels

# Tries before the centre is taken: a part of the drawn shape may not fit into the image.
_MAX_TRIES = 10


class CropBox(NamedTuple):
    """A part of an image."""

    top: int
    left: int
    height: int
    width: int
    is_mirrored: bool = False

    def cut(self, pixels: Pixels) -> Pixels:
        """The part of `[height, width, channels]` as a view; not mirrored yet."""
        rows = slice(self.top, self.top + self.height)
        return pixels[rows, self.left : self.left + self.width]


@dataclass(frozen=True)
class RandomCrop:
    """A random part of an image, mirrored or not.

    One draw decides on mirroring, and four each try on area, ratio, top and left: equal generators
    give the same part of images of the same size.

    Args:
        scale: the least and the largest share of the image's area.
        ratio: the least and the largest width / height.
        flip: the probability of mirroring left to right.

    Raises:
        ValueError: a range that is empty, or a number out of its bounds.

    Examples:
        >>> import numpy as np
        >>> crop = RandomCrop(scale=(0.5, 0.5), ratio=(1.0, 1.0), flip=0.0)
        >>> box = crop.draw(np.random.default_rng(0), 100, 200)
        >>> box.height, box.width, box.is_mirrored
        (100, 100, False)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"image(scale={self.scale}): give (least, largest) shares of the area, "
                "0 < least <= largest <= 1"
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(
                f"image(ratio={self.ratio}): give (least, largest) width / height, "
                "0 < least <= largest"
            )
        if not 0 <= self.flip <= 1:
            raise ValueError(f"image(flip={self.flip}): give a probability from 0 to 1")

    def draw(self, rng: np.random.Generator, height: int, width: int) -> CropBox:
        is_mirrored = rng.random() < self.flip
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        least, most = self.scale
        for _ in range(_MAX_TRIES):
            by_area, by_ratio, by_top, by_left = rng.random(4).tolist()
            area = height * width * (least + (most - least) * by_area)
            aspect = math.exp(low + (high - low) * by_ratio)
            rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < rows <= height and 0 < columns <= width:
                top = int(by_top * (height - rows + 1))
                left = int(by_left * (width - columns + 1))
                return CropBox(top, left, rows, columns, is_mirrored)
        return self._fallback(height, width, is_mirrored=is_mirrored)

    def _fallback(self, height: int, width: int, *, is_mirrored: bool) -> CropBox:
        """The largest part around the centre whose ratio is in the range."""
        rows, columns = height, width
        if width < height * self.ratio[0]:
            rows = min(height, max(1, round(width / self.ratio[0])))
        elif width > height * self.ratio[1]:
            columns = min(width, max(1, round(height * self.ratio[1])))
        return CropBox((height - rows) // 2, (width - columns) // 2, rows, columns, is_mirrored)


def centre(stored: tuple[int, int], height: int, width: int) -> CropBox:
    """The largest centred part of an image of `stored` pixels with the aspect of height x width."""
    stored_height, stored_width = stored
    cut_height, cut_width = stored_height, stored_width
    if stored_height * width <= stored_width * height:
        cut_width = min(stored_width, max(1, round(stored_height * width / height)))
    else:
        cut_height = min(stored_height, max(1, round(stored_width * height / width)))
    top = (stored_height - cut_height) // 2
    left = (stored_width - cut_width) // 2
    return CropBox(top, left, cut_height, cut_width)
