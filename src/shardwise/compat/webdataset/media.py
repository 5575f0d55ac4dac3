"""Video and audio fields to tensors, bounded, by torchcodec or PyAV, whichever is installed.

torchcodec is preferred: it holds the GIL least. Decoders are never kept, so that forked and spawned
workers may call these.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from shardwise.base.errors import DataError, MissingExtraError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.clip_frames import ClipRule
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.sound_samples import samples_of
from shardwise.extensions.media.files.sound_window import open_sound, read_window
from shardwise.extensions.media.files.track import Track


def check_bytes(num_bytes: int, max_bytes: int, what: str) -> None:
    """Raise `DataError` for tensors that are larger than the caller allows."""
    if num_bytes > max_bytes:
        raise DataError(
            f"{what} take {num_bytes} bytes or more, and max_bytes={max_bytes}: take a part of "
            "them (frames= and stride=, of videos), or raise max_bytes="
        )


def average_fps(track: Track) -> float:
    """Frames a second of a video over its whole length."""
    numerator, denominator = track.time_base
    ticks = track.end_pts - int(track.pts[0])
    return track.num_frames * denominator / (ticks * numerator)


def first_frames(
    data: bytes, *, frames: int, stride: int, max_bytes: int
) -> tuple[Any, float, Any]:
    """Each `stride`-th frame from the first on, frames a second, and sound with its rate or None.

    Raises:
        DataError: the video is damaged, or has fewer; or the tensors would be too large.
    """
    reader = BytesReader(data)
    index = index_media(reader)
    track = index.first("video")
    numbers = ClipRule(frames, stride).numbers(track, 0)
    form = form_of(index, layout="THWC")
    check_bytes(int(np.prod(form.shape(frames))), max_bytes, f"{frames} frames")
    pictures = torch.from_numpy(decode_frames(reader, index, numbers, form=form))
    fps = average_fps(track)
    if not any(each.kind == "audio" for each in index.tracks):
        return pictures, fps, None
    # Until the frame after the last one would be shown.
    stop = int(numbers[-1]) + stride
    end = int(track.pts[stop]) if stop < track.num_frames else track.end_pts
    numerator, denominator = track.time_base
    seconds = (end - int(track.pts[0])) * numerator / denominator
    source = open_sound(reader, index=index)
    # Sound may end before the pictures do: nothing is put behind it.
    count = min(round(seconds * source.rate), source.num_samples)
    check_bytes(4 * source.num_channels * count, max_bytes, f"{count} samples of sound")
    part = read_window(source, 0, count, rate=source.rate, channels=None)
    return pictures, fps, (torch.from_numpy(part), source.rate)


VIDEO_EXTENSIONS = frozenset(
    ("avi", "h264", "m4v", "mjpeg", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm", "wmv")
)
# Streams that do not say when each frame is shown: torchcodec does not decode them.
_WITHOUT_TIMES = ("h264", "mpeg", "mpg")
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

    A minute of 640 x 360 at 30 frames a second takes 1.2 GB; sixteen frames take 11 MB.

    Args:
        key: the field's name, with its extension.
        data: the file.
        frames: how many frames, from the first on; None for all. Only what they need is decoded.
        stride: each `stride`-th frame is taken, with `frames`.
        max_bytes: the most that the frames may take, and that the sound may take.

    Returns:
        `(frames, audio, info)`: uint8 `[T, H, W, 3]` RGB; float32 `[channels, samples]`, `[1, 0]`
        where there is no sound, of the same span of time; `{"video_fps": float, "audio_fps": int}`,
        the second only with sound.

    Raises:
        ValueError: the file can't be decoded, has fewer frames than are asked for, or takes more
            than `max_bytes`; or an argument is out of its range.
        MissingExtraError: neither torchcodec nor PyAV is installed.
    """
    _check_positive(frames=1 if frames is None else frames, stride=stride, max_bytes=max_bytes)
    if frames is None and stride != 1:
        raise ValueError(f"torch_video(stride={stride}): it needs frames=")
    extension = _extension(key)
    if extension not in VIDEO_EXTENSIONS:
        return None
    decode, decode_sound = _decoders(by_pyav=extension in _WITHOUT_TIMES)
    if frames is not None:
        with _naming("video", data, DataError):
            pictures, fps, sound = first_frames(
                data, frames=frames, stride=stride, max_bytes=max_bytes
            )
    else:
        pictures, fps = decode(data, max_bytes)
        sound = decode_sound(data, max_bytes)
    if sound is None:
        return pictures, torch.empty((1, 0), dtype=torch.float32), {"video_fps": fps}
    return pictures, sound[0], {"video_fps": fps, "audio_fps": sound[1]}


def torch_audio(
    key: str, data: bytes, *, max_bytes: int = MAX_BYTES
) -> tuple[torch.Tensor, int] | None:
    """Decode a whole audio file; None if the key's extension is not that of audio.

    Returns:
        float32 `[channels, samples]` from -1 to 1, and the samples a second.

    Raises:
        ValueError: the file can't be decoded, holds no sound, or takes more than `max_bytes`.
        MissingExtraError: neither torchcodec nor PyAV is installed.
    """
    _check_positive(max_bytes=max_bytes)
    if _extension(key) not in AUDIO_EXTENSIONS:
        return None
    sound: tuple[torch.Tensor, int] | None = _decoders(by_pyav=False)[1](data, max_bytes)
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


def _decoders(*, by_pyav: bool) -> tuple[Any, Any]:
    """The functions that decode video and audio; PyAV's if asked for and installed."""
    torchcodec = "torchcodec.decoders", (_video_by_torchcodec, _audio_by_torchcodec)
    pyav = "av", (_video_by_pyav, _audio_by_pyav)
    for name, functions in (pyav, torchcodec) if by_pyav else (torchcodec, pyav):
        if _can_import(name):
            return functions
    message = "neither torchcodec nor PyAV is installed to decode video and audio"
    raise MissingExtraError(message, extra="video")


@functools.cache
def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    except (RuntimeError, OSError) as error:
        # Installed, but its libraries (FFmpeg's, or CUDA's) are not: torchcodec raises these.
        logging.getLogger("shardwise").info("%s can't be loaded: %s", name, error)
        return False
    return True


@contextlib.contextmanager
def _naming(kind: str, data: bytes, *errors: type[Exception]) -> Iterator[None]:
    """Turn a decoder's errors into a `ValueError` that says what could not be decoded."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{len(data)} bytes could not be decoded as {kind}: {error}") from error


def _video_by_torchcodec(data: bytes, max_bytes: int) -> tuple[torch.Tensor, float]:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    with _naming("video", data, RuntimeError, ValueError, IndexError):
        # One thread: the loader has one process or thread a sample already.
        decoder = decoders.VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=1)
        header = decoder.metadata
        fps = float(header.average_fps_from_header or header.average_fps or 0)
        picture = 3 * (header.height or 0) * (header.width or 0)
        check_bytes(len(decoder) * picture, max_bytes, f"{len(decoder)} frames")
        return decoder[:], fps


def _audio_by_torchcodec(data: bytes, max_bytes: int) -> tuple[torch.Tensor, int] | None:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    with _naming("audio", data, RuntimeError, IndexError):
        try:
            decoder = decoders.AudioDecoder(data)
        except ValueError:
            return None  # its error for a file without an audio stream; damage is a RuntimeError
        header = decoder.metadata
        seconds = header.duration_seconds_from_header or 0
        promised = int(4 * seconds * (header.sample_rate or 0) * (header.num_channels or 0))
        check_bytes(promised, max_bytes, f"{seconds:g} s of sound")
        samples = decoder.get_all_samples()
    return samples.data, int(samples.sample_rate)


def _video_by_pyav(data: bytes, max_bytes: int) -> tuple[torch.Tensor, float]:
    import av

    with _naming("video", data, av.FFmpegError), av.open(io.BytesIO(data), "r") as container:
        if not container.streams.video:
            raise ValueError(f"the {len(data)} bytes hold no video")
        stream = container.streams.video[0]
        fps = float(stream.average_rate or 0)
        frames: list[Any] = []
        num_bytes = 0
        for frame in container.decode(stream):
            # Before the picture is made: a header may promise one of any size.
            num_bytes += 3 * frame.height * frame.width
            check_bytes(num_bytes, max_bytes, f"{len(frames) + 1} frames")
            # PyAV 19 keeps what converts colours for each thread: with threads of its own a fork of
            # this process would wait for them for ever.
            frames.append(frame.to_ndarray(format="rgb24", threads=1))
    if not frames:
        raise ValueError(f"the {len(data)} bytes hold a video without frames")
    return torch.from_numpy(np.stack(frames)), fps


def _audio_by_pyav(data: bytes, max_bytes: int) -> tuple[torch.Tensor, int] | None:
    import av

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
                parts.append(samples_of(part))
    samples = np.concatenate(parts, axis=1) if parts else np.empty((channels, 0), np.float32)
    return torch.from_numpy(samples), rate
