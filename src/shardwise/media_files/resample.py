"""Sound at another rate: a windowed sinc, one filter a phase, in numpy: alike for every backend.

Output sample j lies at time j / rate; edges are as if there were silence around.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["margin", "resample"]

# Zero crossings of the sinc on each side: -80 dB beside the pass band with this window.
_CROSSINGS = 24
_KAISER_BETA = 8.0
_ROLLOFF = 0.94
# Rows of a block: 16 MB at 64 taps.
_BLOCK_ROWS = 1 << 16


def margin(rate: int, target: int) -> int:
    """Samples on each side of a part that its edges need, to be what they are in the whole."""
    return math.ceil(_CROSSINGS * max(1.0, rate / target)) + 1


def resample(
    sound: NDArray[np.float32], rate: int, target: int, *, begin: int, count: int, offset: int
) -> NDArray[np.float32]:
    """A part of a sound at another rate.

    Args:
        sound: float32 `[channels, samples]`, a part that begins at sample `offset` of the whole.
        rate: its samples a second.
        target: samples a second of the result.
        begin: number of the first output sample in the whole at the target rate.
        count: number of output samples.
        offset: see `sound`; may be negative.

    Returns:
        float32 `[channels, count]`.
    """
    factor = math.gcd(rate, target)
    up, down = target // factor, rate // factor
    filters = _filters(up, down)
    taps = filters.shape[1]
    half = taps // 2
    channels = sound.shape[0]
    out = np.empty((channels, count), np.float32)
    padded = np.pad(sound, ((0, 0), (taps, taps)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=1)
    for row in range(0, count, _BLOCK_ROWS):
        numbers = np.arange(begin + row, begin + min(row + _BLOCK_ROWS, count), dtype=np.int64)
        places = numbers * down
        starts = places // up - offset - half + 1 + taps
        np.clip(starts, 0, windows.shape[1] - 1, out=starts)
        chosen = filters[places % up]
        for channel in range(channels):
            out[channel, row : row + len(numbers)] = np.einsum(
                "ij,ij->i", windows[channel][starts], chosen
            )
    return out


@lru_cache(maxsize=8)
def _filters(up: int, down: int) -> NDArray[np.float32]:
    """A filter for each phase, float32 `[up, taps]`."""
    cutoff = min(1.0, up / down) * _ROLLOFF
    half = math.ceil(_CROSSINGS / min(1.0, up / down))
    places = np.arange(-half + 1, half + 1)[None, :] - np.arange(up)[:, None] / up
    shape = np.clip(1 - (places / half) ** 2, 0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(shape)) / np.i0(_KAISER_BETA)
    filters = cutoff * np.sinc(cutoff * places) * window
    filters /= filters.sum(axis=1, keepdims=True)
    return filters.astype(np.float32)
