"""Decode the clip of a video and the sound of a file by the options in `decoder_kwargs`.

Keeps I3 and I5: what is drawn (rate, scene, first frame) comes from the sample's generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.compat.video2dataset.pictures import PictureSize
from shardwise.compat.webdataset.media import MAX_BYTES, average_fps, check_bytes
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.sound_window import length_at, open_sound, read_window


class UnfitVideoError(DataError):
    """A sound video that can't give the clip: it is too short, or has too few frames per second."""

    lack = "too short"


@dataclass(frozen=True)
class Clip:
    """A chosen clip: frames, int64 `[T]` (-1: zeros), the first one, its rate and which that is."""

    numbers: NDArray[np.int64]
    start: int
    fps: float
    fps_id: int


@dataclass(frozen=True)
class ClipDecoder:
    """Decodes a clip of a video; video2dataset's `VideoDecorder`.

    Args:
        n_frames: frames of the clip; None for all, from the first on.
        uniformly_sample: spread them over the whole video, its first and last frame included.
        fps: frames per second: a number, a list (a rate that the video has is drawn), "sample"
            for any whole number from `min_fps` to `max_fps`; None for the video's own.
        num_threads: has no effect: a worker decodes with one thread.
        tmpdir: has no effect: nothing is written.
        min_fps: for `fps="sample"`.
        max_fps: for `fps="sample"`.
        return_bytes: put the file itself into the sample, as "video_bytes".
        pad_frames: append frames of zeros to a video that is too short.
    """

    n_frames: int | None = None
    uniformly_sample: bool | None = None
    fps: Any = None
    num_threads: int = 4
    tmpdir: str = "/tmp/"  # noqa: S108 - the argument is video2dataset's, and has no effect
    min_fps: int = 1
    max_fps: int = 32
    return_bytes: bool = False
    pad_frames: bool = False

    def __post_init__(self) -> None:
        if self.n_frames is not None:
            check_positive("n_frames", self.n_frames)
        if self.uniformly_sample and (self.fps is not None or self.n_frames is None):
            raise ValueError(
                f"uniformly_sample=True with fps={self.fps!r}, n_frames={self.n_frames}: it needs "
                "n_frames, and no fps"
            )
        if isinstance(self.fps, str):
            if self.fps != "sample":
                raise ValueError(f"fps={self.fps!r}: must be a number, a list, 'sample' or None")
            check_positive("min_fps", self.min_fps)
            if self.max_fps < self.min_fps:
                raise ValueError(f"max_fps={self.max_fps} is below min_fps={self.min_fps}")
        elif self.fps is not None:
            rates = self.rates
            if not rates or not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
                raise ValueError(f"fps={self.fps!r}: rates must be numbers above 0")

    @property
    def rates(self) -> list[Any]:
        if self.fps is None:
            return []
        if self.fps == "sample":
            return list(range(self.min_fps, self.max_fps + 1))
        return list(self.fps) if isinstance(self.fps, Sequence) else [self.fps]

    def __call__(
        self, data: bytes, size: PictureSize, rng: np.random.Generator, cuts: Any = None
    ) -> dict[str, Any]:
        reader = BytesReader(data)
        index = index_media(reader)
        track = index.first("video")
        clip = self._choose(track.num_frames, average_fps(track), rng, cuts)
        form = form_of(index, layout="THWC")
        height, width = form.output
        form = form_of(index, size=size.scaled(height, width), layout="THWC")
        num = len(clip.numbers)
        window = size.window(*form.output, rng)
        check_bytes(int(np.prod(form.shape(num))), MAX_BYTES, f"{num} frames")
        pictures = decode_frames(reader, index, clip.numbers, form=form)
        shown = clip.numbers >= 0
        found = {
            "frames": size.tensor(pictures[:, window[0], window[1]]),
            "fps_id": torch.full((num,), clip.fps_id, dtype=torch.long),
            "original_height": torch.full((num,), height, dtype=torch.long),
            "original_width": torch.full((num,), width, dtype=torch.long),
            "pad_masks": torch.from_numpy(shown.astype(np.float32)),
            "pad_start": int(shown.sum()),
            "native_fps": clip.fps,
            "start_frame": clip.start,
        }
        return found | ({"video_bytes": data} if self.return_bytes else {})

    def _choose(self, length: int, native: float, rng: np.random.Generator, cuts: Any) -> Clip:
        whole = max(1, round(native))
        rate, rate_id = self._rate(whole, rng)
        if self.uniformly_sample:
            assert self.n_frames is not None
            return Clip(
                np.linspace(0, length - 1, self.n_frames).astype(np.int64), 0, rate, rate_id
            )
        # A rate that is drawn is at most the video's.
        stride = max(1, round(whole / rate))
        start, stop = 0, length
        if cuts is not None:
            start, stop = self._scene(_scenes(cuts, length), stride, rng)
        num = (stop - start) // stride if self.n_frames is None else self.n_frames
        num = max(1, num)
        room = stop - start - (num - 1) * stride
        if room < 1 and not self.pad_frames:
            raise UnfitVideoError(
                f"the video, or its scene, has {stop - start} frames, and a clip of {num} with "
                f"stride {stride} takes {(num - 1) * stride + 1}: take fewer n_frames or a higher "
                "fps, or pad_frames=True"
            )
        if room > 1 and self.n_frames is not None:
            start += int(rng.integers(room))
        numbers = start + np.arange(num, dtype=np.int64) * stride
        return Clip(np.where(numbers < stop, numbers, -1), start, rate, rate_id)

    def _rate(self, native: int, rng: np.random.Generator) -> tuple[Any, int]:
        if self.fps is None:
            return native, 0
        rates = self.rates
        places = [place for place, rate in enumerate(rates) if rate <= native]
        if not places:
            error = UnfitVideoError(
                f"the video has {native} frames a second, and fps={self.fps!r} (from "
                f"{min(rates)}) asks for more"
            )
            error.lack = "too few fps"
            raise error
        place = places[int(rng.integers(len(places)))] if len(places) > 1 else places[0]
        return rates[place], place

    def _scene(
        self, scenes: NDArray[np.int64], stride: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """A scene that is long enough for the clip; with padding, any."""
        need = 1 if self.n_frames is None or self.pad_frames else (self.n_frames - 1) * stride + 1
        long = scenes[scenes[:, 1] - scenes[:, 0] >= need]
        if not len(long):
            raise UnfitVideoError(
                f"the longest of {len(scenes)} scenes has "
                f"{int((scenes[:, 1] - scenes[:, 0]).max(initial=0))} frames, and the clip takes "
                f"{need}"
            )
        start, stop = long[int(rng.integers(len(long)))].tolist()
        return start, stop


@dataclass(frozen=True)
class SoundDecoder:
    """Decodes the first seconds of a sound; video2dataset's `AudioDecoder`.

    Args:
        sample_rate: samples per second of the result.
        num_channels: 1 for the mean of all; None for the file's.
        extension: has no effect: the format is detected from the file.
        max_length: seconds; zeros follow a shorter sound.
    """

    sample_rate: int = 48000
    num_channels: int | None = None
    extension: str = ""
    max_length: float = 10

    def __post_init__(self) -> None:
        if not 100 <= self.sample_rate <= 1_000_000:
            raise ValueError(f"sample_rate={self.sample_rate}: must be 100 to 1000000")
        if self.num_channels is not None and not 1 <= self.num_channels <= 64:
            raise ValueError(f"num_channels={self.num_channels}: must be 1 to 64")
        if not 0 < self.max_length < 1e5:
            raise ValueError(f"max_length={self.max_length}: must be seconds above 0")

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Decode one file: "sound", and what video2dataset puts beside it."""
        sound = open_sound(BytesReader(data))
        count = round(self.max_length * self.sample_rate)
        masks = torch.zeros(count)
        masks[: min(count, length_at(sound, self.sample_rate))] = 1.0
        part = read_window(sound, 0, count, rate=self.sample_rate, channels=self.num_channels)
        return {
            "sound": torch.from_numpy(part),
            "audio_pad_masks": masks,
            "original_sample_rate": sound.rate,
            "sample_rate": self.sample_rate,
        }


def check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: must be a whole number, 1 or more")


def _scenes(cuts: Any, length: int) -> NDArray[np.int64]:
    """Scenes `[first, stop)` of frames as an array `[num_scenes, 2]`, inside the video."""
    try:
        found = np.asarray(cuts)
    except ValueError:
        found = np.empty(())
    if found.ndim != 2 or found.shape[1:] != (2,) or not np.issubdtype(found.dtype, np.number):
        raise DataError(
            "the cuts must be pairs of frames (first, stop), one a scene: an array [scenes, 2]; "
            f"they are {type(cuts).__name__} of shape {found.shape}"
        )
    scenes: NDArray[np.int64] = found.astype(np.int64)
    if (scenes < 0).any() or (scenes[:, 0] > scenes[:, 1]).any() or (scenes > length).any():
        raise DataError(f"the cuts {scenes.tolist()[:5]} do not lie in the video's {length} frames")
    return scenes
