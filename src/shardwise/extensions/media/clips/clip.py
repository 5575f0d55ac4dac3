"""A clip between reading and decoding: its bytes and its index; and the decoders of clips."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.files import HeldRanges
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.numbered import with_picture_size
from shardwise.extensions.media.files.pictures import CHOICES, clip_shape
from shardwise.extensions.media.files.sound_window import open_sound, read_window


@dataclass(frozen=True, eq=False)
class Clip:
    """A clip that is read and not decoded."""

    reader: HeldRanges  # has the clip's ranges in memory
    chosen: ChosenClip
    # Rate and channels of what a video without sound gives.
    silence: tuple[int, int] = (48000, 1)

    @cached_property
    def sound(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The sound of the same time, float32 `[channels, samples]`, and where there is one."""
        index, (first, length) = self.chosen.index, self.chosen.ticks
        tick = Fraction(*index.first("video").time_base)
        if all(track.kind == "video" for track in index.tracks):
            rate, channels = self.silence
            count = max(1, round(length * tick * rate))
            return np.zeros((channels, count), np.float32), np.zeros(count, np.bool_)
        heard = index.first("audio")
        begin = first * tick - heard.origin * Fraction(*heard.time_base)
        sound = open_sound(self.reader, index=index, near=begin)
        start = round(begin * sound.rate)
        count = max(1, round(length * tick * sound.rate))
        values = read_window(sound, start, count, rate=sound.rate, channels=None)
        places = np.arange(start, start + count)
        return values, (places >= 0) & (places < sound.num_samples)

    @property
    def described(self) -> str:
        shown = self.chosen.frames[self.chosen.frames >= 0]
        frames = f"frames {int(shown.min())} to {int(shown.max())}" if len(shown) else "no frames"
        return f"clip of {frames}"

    def named(self, error: DataError) -> DataError:
        return DataError(f"{self.described}: {error.reason}", offset=error.offset)


@dataclass(frozen=True, eq=False)
class Clips:
    """The clips of one sample, with `per_sample=`."""

    clips: list[Clip]

    @property
    def described(self) -> str:
        return ", ".join(clip.described for clip in self.clips)


@dataclass(frozen=True)
class ClipDecoder:
    """Decodes the pictures of clips by options of `Dataset.clips`."""

    frames: int
    size: tuple[int, int] | None
    fit: str
    layout: str
    backend: str
    per_sample: int | None = None
    mode: str = "rgb"
    dtype: str = "uint8"
    is_picture: bool = False  # of one frame, without an axis of frames

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None without a size."""
        if self.size is None:
            return None
        group = () if self.per_sample is None else (self.per_sample,)
        shape = clip_shape(self.frames, *self.size, self.layout, self.mode)
        return (*group, *shape[self.is_picture :]), np.dtype(self.dtype)

    def __call__(self, clip: Clip | Clips) -> NDArray[Any]:
        if isinstance(clip, Clips):
            return np.stack([self._decode(each, None) for each in clip.clips])
        return self._decode(clip, None)

    def decode_into(self, clip: Clip | Clips, out: NDArray[Any]) -> None:
        if isinstance(clip, Clips):
            for each, part in zip(clip.clips, out, strict=True):
                self._decode(each, part)
        else:
            self._decode(clip, out)

    def _decode(self, clip: Clip, out: NDArray[Any] | None) -> NDArray[Any]:
        index, frames = clip.chosen.index, clip.chosen.frames
        try:
            index = with_picture_size(index, clip.reader, frames)
            form = form_of(index, **{name: getattr(self, name) for name in ("size", *CHOICES)})
            if self.is_picture and out is not None:
                out = out[None]
            made = decode_frames(
                clip.reader, index, frames, form=form, out=out, backend=self.backend
            )
            return made[0] if self.is_picture else made
        except DataError as error:
            raise clip.named(error) from error


@dataclass(frozen=True)
class SoundDecoder:
    """Decodes the sound of clips.

    Attributes:
        mask: return a mask instead of the sound: False before its start and after its end.
    """

    mask: bool = False

    def __call__(self, clip: Clip) -> NDArray[Any]:
        """float32 `[channels, samples]`, or bool `[samples]`."""
        try:
            return clip.sound[self.mask]
        except DataError as error:
            raise clip.named(error) from error
