"""Frames of PyAV as arrays, for any number of channels.

PyAV finds a frame's planes by walking over pointers until one is 0. FFmpeg keeps eight of them and
no 0 behind: with eight planes and more the walk reads what lies there, and ends the process. Such
frames are made packed, of one plane, by libswresample.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def samples_of(frames: Sequence[Any], low: int, num_samples: int) -> NDArray[np.float32]:
    """Samples of frames in a row: float32 `[channels, num_samples]`, from -1 to 1.

    They start at sample `low` of the first frame, and end in the last one.
    """
    first = frames[0]
    channels, is_planar = int(first.layout.nb_channels), first.format.is_planar
    if is_planar and channels > _MAX_PLANES:
        av = import_av("sound of many channels")
        packed = av.AudioResampler("flt", first.layout, first.sample_rate)
        frames, is_planar = [packed.resample(frame)[0] for frame in frames], False
    kind = frames[0].format.name.removesuffix("p")
    width = 1 if is_planar else channels
    extra = sum(frame.samples for frame in frames) - low - num_samples
    out = np.empty((channels, num_samples), np.float32)
    columns = zip(*(frame.planes for frame in frames), strict=False)
    for row, planes in zip(out, columns, strict=False):  # some frames have a plane too many
        parts = [
            np.frombuffer(plane, _DTYPES[kind], frame.samples * width)
            for plane, frame in zip(planes, frames, strict=True)
        ]
        parts[-1] = parts[-1][: len(parts[-1]) - extra * width]
        parts[0] = parts[0][low * width :]
        if is_planar:
            np.concatenate(parts, out=row, casting="unsafe")
        else:
            out[...] = np.concatenate(parts).reshape(-1, channels).T
    if kind == "u8":
        out -= _SCALES[kind]
    if kind in _SCALES:
        out *= np.float32(1 / _SCALES[kind])
    return out
