"""Video and audio fields to tensors: whole files, by torchcodec or PyAV, whichever is installed.

Neither torchvision (whose `read_video` is gone) nor torchaudio is needed, and no temporary file is
written. torchcodec is taken first: it holds the GIL least. Decoders are made where they are used,
never kept, so forked and spawned workers may call these.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.errors import MissingExtraError

if TYPE_CHECKING:
    import torch

VIDEO_EXTENSIONS = frozenset(
    ("avi", "h264", "m4v", "mjpeg", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm", "wmv")
)
# Streams that do not say when each frame is shown: torchcodec does not decode them.
_WITHOUT_TIMES = ("h264", "mpeg", "mpg")
AUDIO_EXTENSIONS = frozenset(("flac", "m4a", "mp3", "ogg", "opus", "sox", "wav", "wma"))


def torch_video(key: str, data: bytes) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]] | None:
    """Decode a whole video; None if the key's extension is not that of a video.

    Use it as `.decode(wds.torch_video)`. A minute of 640 x 360 at 30 frames a second takes 1.2 GB.
    """
    extension = _extension(key)
    if extension not in VIDEO_EXTENSIONS:
        return None
    import torch

    decode, decode_sound = _decoders(by_pyav=extension in _WITHOUT_TIMES)
    frames, fps = decode(data)
    info: dict[str, Any] = {"video_fps": fps}
    audio, rate = torch.empty((1, 0), dtype=torch.float32), None
    sound = decode_sound(data)
    if sound is not None:
        audio, rate = sound
        info["audio_fps"] = rate
    return frames, audio, info


def torch_audio(key: str, data: bytes) -> tuple[torch.Tensor, int] | None:
    """Decode a whole audio file; None if the key's extension is not that of audio."""
    if _extension(key) not in AUDIO_EXTENSIONS:
        return None
    sound = _decoders(by_pyav=False)[1](data)
    if sound is None:
        raise ValueError(f"the {len(data)} bytes of {key!r} hold no sound")
    audio, rate = sound
    return audio, rate


def _extension(key: str) -> str:
    return key.rpartition(".")[2].lower()


def _decoders(*, by_pyav: bool) -> tuple[Any, Any]:
    """The functions that decode video and audio; PyAV's if they are there and wanted."""
    found = [
        functions
        for can_load, functions in (
            (_has_torchcodec, (_video_by_torchcodec, _audio_by_torchcodec)),
            (_has_pyav, (_video_by_pyav, _audio_by_pyav)),
        )
        if can_load()
    ]
    if not found:
        message = "neither torchcodec nor PyAV is installed to decode video and audio"
        raise MissingExtraError(message, extra="video")
    return found[-1 if by_pyav else 0]


@functools.cache
def _has_torchcodec() -> bool:
    try:
        importlib.import_module("torchcodec.decoders")
    except ImportError:
        return False
    except (RuntimeError, OSError) as error:
        # Installed, but its libraries (FFmpeg's, or CUDA's) are not: it raises RuntimeError.
        logging.getLogger("shardwise").info("torchcodec can't be loaded: %s", error)
        return False
    return True


@functools.cache
def _has_pyav() -> bool:
    try:
        importlib.import_module("av")
    except ImportError:
        return False
    return True


def _video_by_torchcodec(data: bytes) -> tuple[torch.Tensor, float]:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    try:
        # One thread: the loader has one process or thread a sample already.
        decoder = decoders.VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=1)
        header = decoder.metadata
        fps = float(header.average_fps_from_header or header.average_fps or 0)
        return decoder[:], fps
    except (RuntimeError, ValueError, IndexError) as error:
        raise _damaged("video", data, error) from error


def _audio_by_torchcodec(data: bytes) -> tuple[torch.Tensor, int] | None:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    try:
        samples = decoders.AudioDecoder(data).get_all_samples()
    except ValueError:
        return None  # its word for a file without an audio stream; damage is a RuntimeError
    except (RuntimeError, IndexError) as error:
        raise _damaged("audio", data, error) from error
    return samples.data, int(samples.sample_rate)


def _video_by_pyav(data: bytes) -> tuple[torch.Tensor, float]:
    import av
    import torch

    try:
        with av.open(io.BytesIO(data), "r") as container:
            if not container.streams.video:
                raise ValueError(f"the {len(data)} bytes hold no video")
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 0)
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    except av.FFmpegError as error:
        raise _damaged("video", data, error) from error
    if not frames:
        raise ValueError(f"the {len(data)} bytes hold a video without frames")
    return torch.from_numpy(np.stack(frames)), fps


def _audio_by_pyav(data: bytes) -> tuple[torch.Tensor, int] | None:
    import av
    import torch

    try:
        with av.open(io.BytesIO(data), "r") as container:
            if not container.streams.audio:
                return None
            stream = container.streams.audio[0]
            rate = int(stream.rate)
            planar = av.AudioResampler(format="fltp")
            parts = [
                part.to_ndarray()
                for frame in [*container.decode(stream), None]
                for part in planar.resample(frame)
            ]
            channels = stream.channels
    except av.FFmpegError as error:
        raise _damaged("audio", data, error) from error
    samples = np.concatenate(parts, axis=1) if parts else np.empty((channels, 0), np.float32)
    return torch.from_numpy(samples), rate


def _damaged(what: str, data: bytes, error: Exception) -> ValueError:
    return ValueError(f"{len(data)} bytes could not be decoded as {what}: {error}")
