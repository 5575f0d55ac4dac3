"""Decode video and audio fields to tensors, bounded, by PyAV.

Decoders are never kept, so that forked and spawned workers may call these.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.clip_frames import ClipRule
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.pyav_import import import_av
from shardwise.extensions.media.files.sound_samples import samples_of
from shardwise.extensions.media.files.sound_window import open_sound, read_window
from shardwise.extensions.media.files.track import Track


def check_bytes(num_bytes: int, max_bytes: int, what: str) -> None:
    if num_bytes > max_bytes:
        raise DataError(
            f"{what} take {num_bytes} bytes or more, and max_bytes={max_bytes}: take a part of "
            "them (frames= and stride=, of videos), or raise max_bytes="
        )


def average_fps(track: Track) -> float:
    numerator, denominator = track.time_base
    ticks = track.end_pts - int(track.pts[0])
    return track.num_frames * denominator / (ticks * numerator)


def first_frames(
    data: bytes, *, frames: int | None, stride: int, max_bytes: int
) -> tuple[Any, float, Any]:
    """Each `stride`-th frame from the first on, frames per second, and the sound with its rate.

    The sound is None if the file has no sound, or if `frames` is None (all frames).
    """
    reader = BytesReader(data)
    index = index_media(reader)
    track = index.first("video")
    num_frames = track.num_frames if frames is None else frames
    numbers = ClipRule(num_frames, stride).numbers(track, 0)
    form = form_of(index, layout="THWC")
    check_bytes(int(np.prod(form.shape(num_frames))), max_bytes, f"{num_frames} frames")
    pictures = torch.from_numpy(decode_frames(reader, index, numbers, form=form))
    fps = average_fps(track)
    if frames is None or not any(each.kind == "audio" for each in index.tracks):
        return pictures, fps, None
    # Until the frame after the last one would be shown.
    stop = int(numbers[-1]) + stride
    end = int(track.pts[stop]) if stop < track.num_frames else track.end_pts
    numerator, denominator = track.time_base
    seconds = (end - int(track.pts[0])) * numerator / denominator
    source = open_sound(reader, index=index)
    # Sound may end before the pictures do: it is not padded.
    count = min(round(seconds * source.rate), source.num_samples)
    check_bytes(4 * source.num_channels * count, max_bytes, f"{count} samples of sound")
    part = read_window(source, 0, count, rate=source.rate, channels=None)
    return pictures, fps, (torch.from_numpy(part), source.rate)


VIDEO_EXTENSIONS = frozenset(
    ("avi", "h264", "m4v", "mjpeg", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm", "wmv")
)
AUDIO_EXTENSIONS = frozenset(("flac", "m4a", "mp3", "ogg", "opus", "sox", "wav", "wma"))
# 4 GiB: three minutes of 640 x 360. A larger file was hardly meant to be decoded whole, and
# the machine's memory would end the worker without a word.
MAX_BYTES = 1 << 32


def torch_video(
    key: str,
    data: bytes,
    *,
    frames: int | None = None,
    stride: int = 1,
    max_bytes: int = MAX_BYTES,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]] | None:
    """Decode a video, or its first frames; None if the key's extension is not that of a video.

    A minute of 640 x 360 at 30 frames per second takes 1.2 GB; sixteen frames take 11 MB.

    Args:
        key: the field's name, with its extension.
        data: the file.
        frames: how many frames, from the first on; None for all. Only what they need is decoded.
        stride: each `stride`-th frame is taken, with `frames`.
        max_bytes: the most that the frames may take, and that the sound may take.

    Returns:
        `(frames, audio, info)`: uint8 `[T, H, W, 3]` RGB; float32 `[channels, samples]` of the same
        span of time, `[1, 0]` without sound; `{"video_fps": float, "audio_fps": int}`, the second
        only with sound.

    Raises:
        ValueError: the file can't be decoded, has fewer frames than are requested, or takes more
            than `max_bytes`; or an argument is out of its range.
        MissingExtraError: PyAV is not installed.
    """
    _check_positive(frames=1 if frames is None else frames, stride=stride, max_bytes=max_bytes)
    if frames is None and stride != 1:
        raise ValueError(f"torch_video(stride={stride}): it needs frames=")
    if _extension(key) not in VIDEO_EXTENSIONS:
        return None
    with _naming("video", data, DataError):
        pictures, fps, sound = first_frames(data, frames=frames, stride=stride, max_bytes=max_bytes)
    if frames is None:
        sound = _all_sound(data, max_bytes)
    if sound is None:
        return pictures, torch.empty((1, 0), dtype=torch.float32), {"video_fps": fps}
    return pictures, sound[0], {"video_fps": fps, "audio_fps": sound[1]}


def torch_audio(
    key: str, data: bytes, *, max_bytes: int = MAX_BYTES
) -> tuple[torch.Tensor, int] | None:
    """Decode a whole audio file; None if the key's extension is not that of audio.

    Returns:
        float32 `[channels, samples]` from -1 to 1, and the samples per second.

    Raises:
        ValueError: the file can't be decoded, holds no sound, or takes more than `max_bytes`.
        MissingExtraError: PyAV is not installed.
    """
    _check_positive(max_bytes=max_bytes)
    if _extension(key) not in AUDIO_EXTENSIONS:
        return None
    sound = _all_sound(data, max_bytes)
    if sound is None:
        raise ValueError(f"the {len(data)} bytes of {key!r} hold no sound")
    return sound


def _check_positive(**arguments: int) -> None:
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r}: a whole number is needed")
        if value < 1:
            raise ValueError(f"{name}={value}: must be 1 or more")


def _extension(key: str) -> str:
    return key.rpartition(".")[2].lower()


@contextlib.contextmanager
def _naming(kind: str, data: bytes, *errors: type[Exception]) -> Iterator[None]:
    """Turn a decoder's errors into a `ValueError` that names the kind and size of the data."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{len(data)} bytes could not be decoded as {kind}: {error}") from error


def _all_sound(data: bytes, max_bytes: int) -> tuple[torch.Tensor, int] | None:
    av = import_av("torch_audio")
    with _naming("audio", data, av.FFmpegError), av.open(io.BytesIO(data), "r") as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        rate, channels = int(stream.rate), stream.channels
        # Packed: PyAV reads past the planes of eight channels, and ends the process.
        packed = av.AudioResampler(format="flt")
        parts: list[Any] = []
        num_samples = 0
        for frame in chain(container.decode(stream), [None]):
            for part in packed.resample(frame):
                num_samples += part.samples
                check_bytes(4 * channels * num_samples, max_bytes, f"{num_samples} samples")
                parts.append(samples_of([part], 0, part.samples))
    samples = np.concatenate(parts, axis=1) if parts else np.empty((channels, 0), np.float32)
    return torch.from_numpy(samples), rate
