"""Parts of decoded images, resized to one size as `shardwise.codecs.image_decoder` does it.

All that it does after decoding is linear in the pixels, by rows and by columns: the cut, the
resize, mirroring. So each side of an image has one matrix, and a batch takes two batched products,
whatever parts its images have. Nothing is rounded in between, so results differ by one level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.codecs.image_decoder import Image

# Values of images that are resized together, padded to the largest: 256 MiB of float32.
_MAX_NUMBERS = 1 << 26

_Rows = NDArray[Any]


def resized(image: Image, rows: _Rows, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cut parts out of decoded images, and resize them.

    Args:
        image: the size to resize to, and the way.
        rows: `[images]`, the parts, as `PackedImages` has them.
        pixels: uint8 `[channels, height, width]` of each image, all on one device.

    Returns:
        uint8 `[images, channels, *image.size]` on that device.
    """
    assert image.size is not None
    height, width = image.size
    out = pixels[0].new_empty((len(rows), len(pixels[0]), height, width))
    for some in _groups(np.arange(len(rows)), rows):
        part = rows[some]
        stack = _stack_images([pixels[row] for row in some.tolist()])
        sizes = (height, stack.shape[2]), (width, stack.shape[3])
        by_row = _weights(part["top"], part["box_height"], sizes[0], image.interpolation)
        by_column = _weights(part["left"], part["box_width"], sizes[1], image.interpolation)
        mirrored = torch.from_numpy(part["is_mirrored"])[:, None, None]
        by_column = torch.where(mirrored, by_column.flip(1), by_column)
        stack = stack @ by_column.to(stack.device).transpose(1, 2)[:, None]
        stack = by_row.to(stack.device)[:, None] @ stack
        index = torch.from_numpy(some).to(out.device)
        out[index] = stack.round_().clamp_(0, 255).to(torch.uint8)
    return out


def _groups(some: NDArray[np.intp], rows: _Rows) -> Iterator[NDArray[np.intp]]:
    """Cut images into groups that take little memory when padded to the largest of each."""
    some = some[np.argsort(-rows["height"][some].astype(np.int64) * rows["width"][some])]
    while len(some):
        high, wide = (np.maximum.accumulate(rows[side][some]) for side in ("height", "width"))
        numbers = 3 * high.astype(np.int64) * wide * np.arange(1, len(some) + 1)
        size = max(1, int(np.searchsorted(numbers, _MAX_NUMBERS, side="right")))
        yield some[:size]
        some = some[size:]


def _stack_images(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Images as float32 in one tensor, padded by zeros, which no weight touches."""
    high, wide = max(i.shape[1] for i in images), max(i.shape[2] for i in images)
    stacked = images[0].new_zeros((len(images), len(images[0]), high, wide))
    for place, each in zip(stacked, images, strict=True):
        place[:, : each.shape[1], : each.shape[2]] = each
    return stacked.float()


def _weights(first: _Rows, length: _Rows, size: tuple[int, int], how: str) -> torch.Tensor:
    """float32 `[images, *size]`: what each stored pixel of a side adds to each new one."""
    start, count = (
        torch.from_numpy(each.astype(np.float64))[:, None, None] for each in (first, length)
    )
    pixel, new = torch.arange(size[1]) - start, torch.arange(size[0])[:, None]
    scale = count / size[0]
    # The distance between the middles of two pixels, in new ones where the side shrinks.
    far = ((pixel - (new + 0.5) * scale + 0.5) / scale.clamp(min=1)).abs()
    weights = (1 - far).clamp(min=0)
    if how == "bicubic":  # Catmull and Rom's
        near = (1.5 * far - 2.5) * far**2 + 1
        weights = torch.where(far < 1, near, ((2.5 - 0.5 * far) * far - 4) * far + 2)
        weights *= far < 2
    weights *= (pixel >= 0) & (pixel < count)
    return (weights / weights.sum(2, keepdim=True)).float()
