"""Frames of PyAV as arrays, for any number of channels.

PyAV finds a frame's planes by walking over pointers until one is 0. FFmpeg keeps eight of them and
no 0 behind: with eight planes and more the walk reads what lies there, and ends the process. Such
frames are made packed, of one plane, by libswresample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.media.files.pyav_import import import_av

_MAX_PLANES = 7
_SCALES = {"u8": 1 << 7, "s16": 1 << 15, "s32": 1 << 31}
_DTYPES = {
    name: np.dtype(code)
    for name, code in (("u8", "u1"), ("s16", "i2"), ("s32", "i4"), ("flt", "f4"), ("dbl", "f8"))
}


def samples_of(frame: Any) -> NDArray[np.float32]:
    """The samples of a frame of sound: float32 `[channels, samples]`, from -1 to 1."""
    channels = int(frame.layout.nb_channels)
    if frame.format.is_planar and channels > _MAX_PLANES:
        av = import_av("sound of many channels")
        packed = av.AudioResampler("flt", frame.layout, frame.sample_rate)
        (frame,) = packed.resample(frame)
    kind = frame.format.name.removesuffix("p")
    count = int(frame.samples)
    dtype = _DTYPES[kind]
    if frame.format.is_planar:
        sound: NDArray[Any] = np.empty((channels, count), dtype)
        for row, plane in zip(sound, frame.planes, strict=False):  # some have a plane too many
            row[:] = np.frombuffer(plane, dtype, count)
    else:
        sound = np.frombuffer(frame.planes[0], dtype, count * channels).reshape(count, channels).T
    scale = _SCALES.get(kind)
    if scale is None:
        return sound if dtype == np.float32 else sound.astype(np.float32)
    if kind == "u8":
        sound = sound.astype(np.int16) - scale
    # float32 holds 24 bits: int32 goes by float64, and is rounded once.
    wide = np.float64 if kind == "s32" else np.float32
    scaled: NDArray[np.float32] = np.multiply(sound, wide(1 / scale), dtype=wide)
    return scaled.astype(np.float32, copy=False)
