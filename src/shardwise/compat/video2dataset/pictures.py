"""The size of a clip's pictures: `resize_size`, `crop_size`, `random_crop`, and their dtype."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.base.errors import DataError


@dataclass(frozen=True)
class PictureSize:
    """The size of resized pictures (the shorter side, or both), and their crop's."""

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    is_random: bool = False
    dtype: torch.dtype = torch.float32

    def scaled(self, height: int, width: int) -> tuple[int, int] | None:
        """The size to which a picture of this size is resized; None for its own."""
        if not isinstance(self.resize, int):
            return self.resize
        factor = self.resize / min(height, width)
        return round(height * factor), round(width * factor)

    def window(self, height: int, width: int, rng: np.random.Generator) -> tuple[slice, slice]:
        if self.crop is None:
            return slice(0, height), slice(0, width)
        if self.crop[0] > height or self.crop[1] > width:
            raise DataError(
                f"crop_size={list(self.crop)} (height, width) does not fit into pictures of "
                f"{height} x {width}: take resize_size= of that or more"
            )
        places = []
        for full, part in zip((height, width), self.crop, strict=True):
            at = int(rng.integers(full - part + 1)) if self.is_random else (full - part) // 2
            places.append(slice(at, at + part))
        return places[0], places[1]

    def tensor(self, pictures: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(pictures)).to(self.dtype)


def picture_size(resize: Any, crop: Any, *, random_crop: bool, dtype: Any) -> PictureSize:
    shorter = resize if isinstance(resize, int) and not isinstance(resize, bool) else None
    if shorter is not None and not 1 <= shorter <= 1 << 15:
        raise ValueError(f"resize_size={resize!r}: must be 1 to 32768")
    resize = shorter or _pair("resize_size", resize)
    crop = _pair("crop_size", [crop, crop] if isinstance(crop, int) else crop)
    lowest = (resize, resize) if isinstance(resize, int) else resize
    if lowest and crop and (crop[0] > lowest[0] or crop[1] > lowest[1]):
        raise ValueError(
            f"crop_size={crop} is larger than resize_size={resize}: resize to that or more"
        )
    if dtype is None:
        # video2dataset's own: half precision for what it resizes or crops.
        dtype = torch.float16 if resize or crop else torch.float32
    if not isinstance(dtype, torch.dtype):
        dtype = getattr(torch, str(dtype), dtype)
    if dtype not in (torch.uint8, torch.float16, torch.float32, torch.bfloat16):
        raise ValueError(f"dtype={dtype!r}: must be uint8, float16, bfloat16 or float32")
    return PictureSize(resize, crop, bool(random_crop), dtype)


def _pair(name: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        sides = [] if isinstance(value, str) else [operator.index(each) for each in value]
    except TypeError:
        sides = []
    if len(sides) != 2:
        raise ValueError(f"{name}={value!r}: must be a number or [height, width]")
    height, width = sides
    if not 1 <= min(height, width) <= max(height, width) <= 1 << 15:
        raise ValueError(f"{name}={value!r}: sides must be 1 to 32768")
    return height, width
