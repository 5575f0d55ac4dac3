"""The lazy media decoder: a value that holds a file's bytes, and decodes parts of it on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.arguments import suggest_names
from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.clip_frames import frames_at_seconds
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex, index_media
from shardwise.extensions.media.files.sound_window import open_sound, read_window


@dataclass(frozen=True)
class MediaInfo:
    """The content of a media file's header.

    Attributes:
        num_frames: frames that are shown; 0 without pictures.
        height, width: of the picture as it is shown.
        seconds: how long the pictures last; without pictures, the sound.
        fps: frames per second on average.
        is_constant_rate: whether all frames are shown for the same time, within a tick.
        video_codec, audio_codec: FFmpeg's names; None without such a track.
        rate, num_channels: of the sound; 0 without one.
        gop: median number of frames from one key frame to the next.
    """

    num_frames: int = 0
    height: int = 0
    width: int = 0
    seconds: float = 0.0
    fps: float = 0.0
    is_constant_rate: bool = True
    video_codec: str | None = None
    audio_codec: str | None = None
    rate: int = 0
    num_channels: int = 0
    gop: float = 0.0


class MediaFile:
    """The bytes of a media file. It pickles, and keeps no decoder open.

    Seconds count from the first frame that is shown, of sound too; without pictures, from the first
    sample that is heard.

    Attributes:
        data: the file.
    """

    def __init__(self, data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        self.data = data
        self._limits = limits

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaFile, (self.data, self._limits)

    def __repr__(self) -> str:
        return f"MediaFile({len(self.data)} bytes)"

    @cached_property
    def _index(self) -> MediaIndex:
        return index_media(BytesReader(self.data), limits=self._limits)

    @cached_property
    def info(self) -> MediaInfo:
        """The content of the header."""
        tracks = {track.kind: track for track in reversed(self._index.tracks)}
        picture, sound = tracks.get("video"), tracks.get("audio")
        values: dict[str, Any] = {}
        if sound is not None:
            values = {
                "audio_codec": sound.codec,
                "rate": sound.rate,
                "num_channels": sound.num_channels,
                "seconds": sound.length / sound.rate if sound.rate else 0.0,
            }
        if picture is not None and picture.num_frames:
            steps = np.diff(picture.pts)
            numerator, denominator = picture.time_base
            seconds = (picture.end_pts - int(picture.pts[0])) * numerator / denominator
            height, width = form_of(self._index).upright
            values |= {
                "num_frames": picture.num_frames,
                "height": height,
                "width": width,
                "seconds": seconds,
                "fps": picture.num_frames / seconds,
                "is_constant_rate": not len(steps) or int(steps.max() - steps.min()) <= 1,
                "video_codec": picture.codec,
                "gop": float(np.median(np.diff(picture.groups()))),
            }
        return MediaInfo(**values)

    def frames(self, numbers: ArrayLike) -> NDArray[np.uint8]:
        """Frames by number, in any order, negative from the end: uint8 `[T, H, W, 3]`.

        Raises:
            DataError: a frame is damaged, or the file has no video.
            IndexError: a frame is not there.
        """
        track = self._index.first("video")
        wanted = np.atleast_1d(np.asarray(numbers))
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise TypeError(f"frames are named by numbers, not by {numbers!r:.80}")
        wanted = wanted.astype(np.int64)
        wanted = np.where(wanted < 0, wanted + track.num_frames, wanted)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < track.num_frames:
            raise IndexError(f"frames {numbers!r:.80} of a video of {track.num_frames}")
        return self._decode(wanted)

    def at(self, seconds: Sequence[float] | float) -> NDArray[np.uint8]:
        """The frames that are on the screen at some times: uint8 `[T, H, W, 3]`.

        Raises:
            DataError: a time is before or after the video, or a frame is damaged.
        """
        times = np.atleast_1d(np.asarray(seconds, np.float64))
        return self._decode(frames_at_seconds(self._index.first("video"), times))

    def audio(self, start: float = 0.0, stop: float | None = None) -> NDArray[np.float32]:
        """The sound from `start` to `stop` seconds: float32 `[channels, samples]`.

        What lies outside the sound is silence.

        Raises:
            DataError: the file has no sound, or it is damaged.
        """
        pictures = any(track.kind == "video" for track in self._index.tracks)
        sound = open_sound(
            BytesReader(self.data), index=self._index if pictures else None, limits=self._limits
        )
        shift = self._sound_shift() if pictures else 0.0
        begin = round((start + shift) * sound.rate)
        end = sound.num_samples if stop is None else round((stop + shift) * sound.rate)
        if end < begin:
            raise DataError(f"audio({start}, {stop}): the part ends before it begins")
        return read_window(sound, begin, end - begin, rate=sound.rate, channels=None)

    def _sound_shift(self) -> float:
        """Seconds from the first sample that is heard to the first frame."""
        picture, sound = self._index.first("video"), self._index.first("audio")
        ticks, scale = picture.time_base
        sound_ticks, sound_scale = sound.time_base
        return int(picture.pts[0]) * ticks / scale - sound.origin * sound_ticks / sound_scale

    def _decode(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        form = form_of(self._index, layout="THWC")
        reader = BytesReader(self.data)
        return decode_frames(reader, self._index, numbers, form=form, limits=self._limits)


@dataclass(frozen=True)
class Media:
    """A decoder of lazy values; `media` makes it."""

    limits: Limits = field(default=DEFAULT_LIMITS, repr=False)

    def __repr__(self) -> str:
        return "media()"

    def __call__(self, data: bytes | memoryview) -> MediaFile:
        return MediaFile(bytes(data), self.limits)


@suggest_names
def media(
    *, max_pixels: int = DEFAULT_LIMITS.max_pixels, max_frames: int = DEFAULT_LIMITS.max_frames
) -> Media:
    """Keep media files as they are, to decode parts of them in a transform.

    Args:
        max_pixels: the largest picture to decode, in height x width.
        max_frames: the most coded frames that a header may promise.

    Returns:
        A decoder of bytes to `MediaFile`, with `.info`, `.frames([0, 7])`, `.at([0.5])` and
        `.audio(start_s, stop_s)`.

    Examples:
        >>> media()
        media()
    """
    return Media(Limits(max_pixels, max_frames))
