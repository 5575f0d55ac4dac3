"""A part of a sound in the requested rate and channels.

soxr resamples it, at its quality HQ, in blocks that are the same for every part: a part of a sound
is to the bit what it is in the whole. Output sample j lies at time j / rate; edges are as if there
were silence around.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import spent_in
from shardwise.base.errors import DataError, imports_of
from shardwise.extensions.media.files.byte_reader import RangeReader, read_exactly
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.sound import PacketSound, Sound, SoundFile, is_plain_sound


def open_sound(
    reader: RangeReader,
    *,
    index: MediaIndex | None = None,
    limits: Limits = DEFAULT_LIMITS,
    near: Fraction | float = 0,
) -> Sound:
    """The sound of a file; `near` is the second that is read first."""
    if index is None:
        if is_plain_sound(bytes(read_exactly(reader, 0, min(26, reader.num_bytes)))):
            return SoundFile(reader)
        index = index_media(reader, limits=limits)
    return PacketSound(reader, index, limits, near=near)


def length_at(sound: Sound, rate: int) -> int:
    """Samples of a sound at another rate."""
    return -(-sound.num_samples * rate // sound.rate)


def read_window(
    sound: Sound, start: int, count: int, *, rate: int, channels: int | None
) -> NDArray[np.float32]:
    """Samples `[start, start + count)` at `rate`; zeros before and after the sound.

    `channels` is None for the sound's own, 1 for their mean, or more for copies of a single one.
    """
    length = length_at(sound, rate)
    low, high = max(0, start), min(length, start + count)
    if low >= high:
        out = np.zeros((sound.num_channels, count), np.float32)
    else:
        read = sound.read if rate == sound.rate else partial(_resample_sound, sound, rate)
        out = read(low, high)
        if high - low < count:
            out = np.pad(out, ((0, 0), (low - start, start + count - high)))
    # Without a change as it is: a copy of 10 s costs a tenth of decoding them from FLAC.
    return _with_channels(out, channels)


# Blocks are at least this long, and resampled with as much around them as the filter is wide:
# soxr HQ has 125 dB of attenuation from 0.91 to 1 of the lower rate's band.
BLOCK_S, _MARGIN_SAMPLES = 1.5, 256


def _resample_sound(sound: Sound, rate: int, start: int, stop: int) -> NDArray[np.float32]:
    """Samples `[start, stop)` of a sound at another rate, which must be there."""
    rates = f"rate={rate} of a sound of {sound.rate} samples a second"
    with imports_of("audio", f"{rates} needs soxr, which is not installed"):
        import soxr
    factor = math.gcd(sound.rate, rate)
    up, down = rate // factor, sound.rate // factor
    # Blocks start where samples of both rates lie at one time.
    periods = math.ceil(BLOCK_S * sound.rate / down)
    around = math.ceil(_MARGIN_SAMPLES * max(1.0, down / up) / down)
    first, last = start // (periods * up), -(-stop // (periods * up))
    low, high = (first * periods - around) * down, (last * periods + around) * down
    part = sound.read(max(0, low), min(sound.num_samples, high))
    with spent_in("convert"):
        if low < 0 or high > sound.num_samples:
            part = np.pad(part, ((0, 0), (max(0, -low), max(0, high - sound.num_samples))))
        out = np.empty((sound.num_channels, stop - start), np.float32)
        for number in range(first, last):
            at = (number - first) * periods * down
            block = np.ascontiguousarray(part[:, at : at + (periods + 2 * around) * down].T)
            made = soxr.resample(block, sound.rate, rate, "HQ")[around * up :]
            begin = number * periods * up
            here, end = max(begin, start), min(begin + periods * up, stop)
            out[:, here - start : end - start] = made[here - begin : end - begin].T
    return out


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
