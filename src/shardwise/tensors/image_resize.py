"""Parts of decoded images, resized to one size as `shardwise.codecs.image_decoder` does it.

All that it does after decoding is linear in the pixels, by rows and by columns: halving in the DCT,
the cut, averaging two by two, the resize, mirroring. So each side of an image has one matrix, and a
batch takes two batched products, whatever parts its images have. Nothing is rounded in between,
and the DCT's halves are means: docs/decoding.md says how far results differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.codecs.image_decoder import Image

# Of images that are resized together, padded to the largest: 256 MiB of float32.
_MAX_NUMBERS = 1 << 26

_Rows = NDArray[Any]


def resized(image: Image, rows: _Rows, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cut parts out of decoded images, and resize them.

    Args:
        image: says the size and the way.
        rows: `[images]`, the parts, as `PackedImages` has them.
        pixels: uint8 `[channels, height, width]` of each image, all on one device.

    Returns:
        uint8 `[images, channels, *image.size]` on that device.
    """
    assert image.size is not None
    height, width = image.size
    out = pixels[0].new_empty((len(rows), len(pixels[0]), height, width))
    is_area = (rows["box_height"] >= height) & (rows["box_width"] >= width) & image.antialias
    halves = np.where(is_area, 1, _halves(rows, height, width))
    for way in np.unique(is_area).tolist():
        for some in _groups(np.flatnonzero(is_area == way), rows):
            part = rows[some]
            stack = _stacked([pixels[row] for row in some.tolist()])
            # Of each side: the first pixel and length of the cut, and the length of the image.
            down = [part[name] for name in ("top", "box_height", "height")] + [halves[some]]
            across = [part[name] for name in ("left", "box_width", "width")] + [halves[some]]
            by_row = _weights(part["shrink"], down, (height, stack.shape[2]), way)
            by_column = _weights(part["shrink"], across, (width, stack.shape[3]), way)
            mirrored = torch.from_numpy(part["is_mirrored"])[:, None, None]
            by_column = torch.where(mirrored, by_column.flip(1), by_column)
            stack = stack @ by_column.to(stack.device).transpose(1, 2)[:, None]
            stack = by_row.to(stack.device)[:, None] @ stack
            index = torch.from_numpy(some).to(out.device)
            out[index] = stack.round_().clamp_(0, 255).to(torch.uint8)
    return out


def _halves(rows: _Rows, height: int, width: int) -> NDArray[np.int64]:
    """Pixels of a side that are averaged: twice as many while both sides are twice too large."""
    fit = np.minimum(rows["box_height"] // height, rows["box_width"] // width)
    halves: NDArray[np.int64] = 1 << np.log2(np.maximum(fit, 1)).astype(np.int64)
    return halves


def _groups(some: NDArray[np.intp], rows: _Rows) -> Iterator[NDArray[np.intp]]:
    """Cut images into groups that take little memory when padded to the largest of each."""
    some = some[np.argsort(-rows["height"][some].astype(np.int64) * rows["width"][some])]
    while len(some):
        high, wide = (np.maximum.accumulate(rows[side][some]) for side in ("height", "width"))
        numbers = 3 * high.astype(np.int64) * wide * np.arange(1, len(some) + 1)
        size = max(1, int(np.searchsorted(numbers, _MAX_NUMBERS, side="right")))
        yield some[:size]
        some = some[size:]


def _stacked(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Images as float32 in one tensor, padded by zeros, which no weight touches."""
    high, wide = max(i.shape[1] for i in images), max(i.shape[2] for i in images)
    stacked = images[0].new_zeros((len(images), len(images[0]), high, wide))
    for place, each in zip(stacked, images, strict=True):
        place[:, : each.shape[1], : each.shape[2]] = each
    return stacked.float()


def _weights(
    shrink: _Rows, side: list[_Rows], size: tuple[int, int], is_area: bool
) -> torch.Tensor:
    """float32 `[images, *size]`: what each stored pixel of a side adds to each new one."""
    shrinks, first, length, stored, half = (
        torch.from_numpy(each.astype(np.int64))[:, None, None] for each in (shrink, *side)
    )
    pixel, new = torch.arange(size[1]), torch.arange(size[0])[:, None]
    # Pixels of the halved cut, which are resized: each is the mean of a block of stored ones.
    block = torch.div(pixel // shrinks - first, half, rounding_mode="floor")
    count = length // half
    scale = count.double() / size[0]
    if is_area:
        end = torch.minimum(block + 1, (new + 1) * scale)
        weights = end - torch.maximum(block.double(), new * scale)
    else:
        at = torch.minimum(((new + 0.5) * scale - 0.5).clamp(min=0), (count - 1).double())
        weights = 1 - (at - block).abs()
    weights = weights.clamp_(min=0) * ((block >= 0) & (block < count) & (pixel < stored))
    return (weights / weights.sum(2, keepdim=True)).float()
