"""A part of a sound in the rate and the channels asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError
from shardwise.media_files.byte_reader import RangeReader, read_exactly
from shardwise.media_files.limits import DEFAULT_LIMITS, Limits
from shardwise.media_files.media_index import MediaIndex, index_media
from shardwise.media_files.resample import margin, resample
from shardwise.media_files.sound import PacketSound, Sound, SoundFile, is_plain_sound
from shardwise.stages import spent_in

__all__ = ["length_at", "open_sound", "read_window"]


def open_sound(
    reader: RangeReader, *, index: MediaIndex | None = None, limits: Limits = DEFAULT_LIMITS
) -> Sound:
    """The sound of a file.

    Raises:
        DataError: the file has none, or is damaged.
    """
    if not reader.num_bytes:
        raise DataError("the file is empty", offset=0)
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
