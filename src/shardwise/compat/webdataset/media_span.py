"""The first frames of a video with the sound of their time: `torch_video(frames=)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardwise.errors import DataError
from shardwise.media_files.byte_reader import BytesReader
from shardwise.media_files.clip_frames import ClipRule
from shardwise.media_files.frames import decode_frames, form_of
from shardwise.media_files.media_index import MediaIndex, index_media
from shardwise.media_files.sound_window import open_sound, read_window
from shardwise.media_files.track import Track

__all__ = ["Span", "check_bytes", "first_frames"]


@dataclass(frozen=True)
class Span:
    """Some frames and their sound.

    Attributes:
        frames: uint8 `[T, H, W, 3]` RGB.
        fps: the video's frames a second, on average.
        sound: float32 `[channels, samples]` at `rate`; None where the file has none.
        rate: samples a second.
    """

    frames: torch.Tensor
    fps: float
    sound: torch.Tensor | None = None
    rate: int = 0


def check_bytes(num_bytes: int, max_bytes: int, what: str) -> None:
    """Refuse tensors that are larger than the caller allows.

    Raises:
        DataError: they are.
    """
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


def first_frames(data: bytes, *, frames: int, stride: int, max_bytes: int) -> Span:
    """Decode `frames` frames, each `stride`-th one from the first on, and the sound meanwhile.

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
        return Span(pictures, fps)
    sound, rate = _sound_of(reader, index, track, int(numbers[-1]) + stride, max_bytes)
    return Span(pictures, fps, sound, rate)


def _sound_of(
    reader: BytesReader, index: MediaIndex, track: Track, stop: int, max_bytes: int
) -> tuple[Any, int]:
    """The sound from the first frame until the frame `stop` would be shown."""
    numerator, denominator = track.time_base
    end = int(track.pts[stop]) if stop < track.num_frames else track.end_pts
    source = open_sound(reader, index=index)
    seconds = (end - int(track.pts[0])) * numerator / denominator
    # Sound may end before the pictures do: nothing is put behind it.
    count = min(round(seconds * source.rate), source.num_samples)
    check_bytes(4 * source.num_channels * count, max_bytes, f"{count} samples of sound")
    part = read_window(source, 0, count, rate=source.rate, channels=None)
    return torch.from_numpy(part), source.rate
