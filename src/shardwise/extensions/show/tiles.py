"""A value as a tile: a picture, a strip of a clip's frames, or a waveform."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.plugins import find
from shardwise.dataset.display import PICTURE_BRANDS, pixels_of

_FRAMES = 8  # of a clip, evenly spaced
_SOUND_S = 60.0  # of an encoded sound
_MIN_SOUND, _MAX_CHANNELS = 256, 8  # fewer samples are a vector, more channels a matrix
_INK = (0, 121, 107)
_MAGIC = (b"\x1aE\xdf\xa3", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3")


def tile_of(value: Any, side: int) -> NDArray[np.uint8] | None:
    """A value as pixels, uint8 `[H, W, 3]`, about `side` of them; None of other values.

    Raises:
        DataError: encoded media are damaged.
        MissingExtraError: the decoder of encoded media is not installed.
    """
    if isinstance(value, bytes) and _is_media(value):
        value = find("decoders", "media")()(value)
    info: Any = getattr(value, "info", None)
    if hasattr(info, "num_frames"):
        seconds = min(info.seconds, _SOUND_S)
        value = (
            value.frames(_spread(info.num_frames)) if info.num_frames else value.audio(0, seconds)
        )
    if not isinstance(value, bytes):
        value = _numbers(value)
        if value is None or value.size == 0:
            return None
        is_row = value.ndim == 1 or (value.ndim == 2 and len(value) <= _MAX_CHANNELS)
        if is_row and value.dtype.kind == "f" and value.shape[-1] >= _MIN_SOUND:
            return _wave(np.atleast_2d(value).mean(axis=0), side)
        value = _in_range(value)
        if value.ndim == 4:
            tiles = [tile_of(frame, side // 2) for frame in value[_spread(len(value))]]
            frames = [tile for tile in tiles if tile is not None]
            return np.hstack(frames) if frames else None
        if value.ndim not in (2, 3) or sorted(value.shape)[-2] < 2:
            return None
    pixels = pixels_of(value)
    return None if pixels is None else _fit_picture(pixels, side)


def _is_media(data: bytes) -> bool:
    is_riff = data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"AVI ")
    is_mp4 = data[4:8] == b"ftyp" and data[8:12] not in PICTURE_BRANDS
    return is_riff or is_mp4 or data.startswith(_MAGIC)


def _spread(count: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, _FRAMES)).round().astype(np.int64)


def _numbers(value: Any) -> NDArray[Any] | None:
    """A tensor, an array or a Pillow image as an array of numbers; None of anything else."""
    if hasattr(value, "detach"):
        if value.is_meta or value.is_quantized or str(value.layout) != "torch.strided":
            return None
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    if not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = np.nan_to_num(array.astype(np.float32), posinf=0.0, neginf=0.0)
    return array if array.dtype.kind in "buif" else None


def _in_range(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 to 1, or uint8: others are stretched from the least to the greatest."""
    low, high = float(array.min()), float(array.max())
    if array.dtype == np.uint8 or (array.dtype.kind == "f" and low >= 0 and high <= 1):
        return array
    return (array.astype(np.float32) - low) / ((high - low) or 1.0)


def _wave(samples: NDArray[np.float32], side: int) -> NDArray[np.uint8]:
    """Draw each column from its least to its greatest sample, scaled to the largest amplitude."""
    middle = (side // 2 - 1) / 2
    starts = np.linspace(0, len(samples), min(2 * side, len(samples)), endpoint=False)
    heights = samples * (middle / (float(np.abs(samples).max()) or 1.0))
    top, bottom = (
        middle - edge.reduceat(heights, starts.astype(np.int64))
        for edge in (np.maximum, np.minimum)
    )
    rows = np.arange(side // 2)[:, None]
    has_ink = (rows >= np.floor(top)) & (rows <= np.ceil(bottom))
    return np.where(has_ink[..., None], _INK, 255).astype(np.uint8)


def _fit_picture(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """A picture in colours; its longer side is `side` at most, by means of blocks or repeats."""
    height, width = pixels.shape[:2]
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    step = -(-max(height, width) // side)
    if step == 1:
        times = side // max(height, width)
        return pixels.repeat(times, axis=0).repeat(times, axis=1)
    # Blocks at the edges are smaller.
    rows, columns = np.arange(0, height, step), np.arange(0, width, step)
    sums = np.add.reduceat(pixels, rows, axis=0, dtype=np.uint32)
    counts = (
        np.minimum(step, height - rows)[:, None, None] * np.minimum(step, width - columns)[:, None]
    )
    means: NDArray[np.uint8] = (np.add.reduceat(sums, columns, axis=1) // counts).astype(np.uint8)
    return means
