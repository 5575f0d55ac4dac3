"""A part of a sound in the rate and the channels asked for.

Resampled by a windowed sinc, one filter a phase, in numpy: alike for every backend. Output sample j
lies at time j / rate; edges are as if there were silence around.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.stages import spent_in
from shardwise.extensions.media.files.byte_reader import RangeReader, read_exactly
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.sound import PacketSound, Sound, SoundFile, is_plain_sound


def open_sound(
    reader: RangeReader, *, index: MediaIndex | None = None, limits: Limits = DEFAULT_LIMITS
) -> Sound:
    """The sound of a file.

    Raises:
        DataError: the file has none, or is damaged.
    """
    if index is None:
        if is_plain_sound(bytes(read_exactly(reader, 0, min(40, reader.num_bytes)))):
            return SoundFile(reader)
        index = index_media(reader, limits=limits)
    return PacketSound(reader, index, limits)


def length_at(sound: Sound, rate: int) -> int:
    """Samples of a sound at another rate."""
    return -(-sound.num_samples * rate // sound.rate)


def read_window(
    sound: Sound, start: int, count: int, *, rate: int, channels: int | None
) -> NDArray[np.float32]:
    """Samples `[start, start + count)` at `rate`; zeros behind and before the sound.

    Args:
        sound: where from.
        start: at the target rate; may be negative.
        count: samples.
        rate: the target rate.
        channels: None for the sound's; 1 for the mean of all; more of a sound of one are copies.

    Raises:
        DataError: the channels can't be made.
    """
    if rate == sound.rate:
        low, high = max(0, start), min(sound.num_samples, start + count)
        if high - low == count:
            # As it is: a copy of 10 s costs a tenth of decoding them from FLAC.
            return _with_channels(sound.read(low, high), channels)
        out = np.zeros((sound.num_channels, count), np.float32)
        if low < high:
            out[:, low - start : high - start] = sound.read(low, high)
    else:
        around = margin(sound.rate, rate)
        low = max(0, start * sound.rate // rate - around)
        high = min(sound.num_samples, -(-(start + count) * sound.rate // rate) + around)
        part = sound.read(low, max(low, high))
        with spent_in("convert"):
            out = resample(part, sound.rate, rate, begin=start, count=count, offset=low)
        outside = length_at(sound, rate) - start
        out[:, max(0, outside) :] = 0
        out[:, : max(0, -start)] = 0
    return _with_channels(out, channels)


def _with_channels(sound: NDArray[np.float32], channels: int | None) -> NDArray[np.float32]:
    if channels in (None, sound.shape[0]):
        return sound
    if channels == 1:
        mean: NDArray[np.float32] = sound.mean(axis=0, keepdims=True, dtype=np.float32)
        return mean
    if sound.shape[0] == 1:
        assert channels is not None
        return np.repeat(sound, channels, axis=0)
    raise DataError(
        f"the sound has {sound.shape[0]} channels, and channels={channels} is asked for: take 1 "
        "for their mean, or None for all of them"
    )


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
