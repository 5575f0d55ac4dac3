"""The frames of a clip: integers alone, decided before a byte of a picture is read."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.timeline import Timeline, shown_at
from shardwise.extensions.media.files.track import Track

# Rates that are in use have denominators such as 1001; a float's own would not fit into 64 bits.
_MAX_DENOMINATOR = 1_000_000


@dataclass(frozen=True)
class ClipRule:
    """A rule that selects a clip's frames from a video.

    Attributes:
        frames: frames of the clip.
        stride: every `stride`-th frame of the video is taken.
        fps: frames per second of the clip, in place of `stride`; None for the video's own frames.
        short: the result for a video that is too short: "error", "mask" or "repeat".
    """

    frames: int
    stride: int = 1
    fps: float | Fraction | None = None
    short: str = "error"

    def num_starts(self, track: Timeline) -> int:
        """The number of frames at which a whole clip can start; 0 for a video that is too short."""
        if self.fps is None:
            return max(0, track.num_frames - (self.frames - 1) * self.stride)
        # The time of the last frame must be before the video's end.
        last = int(self._ticks(track)[-1])
        return int(np.searchsorted(track.pts, track.end_pts - last, side="left"))

    def numbers(self, track: Timeline, start: int) -> NDArray[np.int64]:
        """The clip's frames in the order of showing, int64 `[frames]`; -1 for a masked one.

        With `fps`, frame i is the one that is on the screen i / fps seconds after the first.
        """
        if self.fps is None:
            numbers = start + np.arange(self.frames, dtype=np.int64) * self.stride
            inside = numbers < track.num_frames
        else:
            first = int(track.pts[min(start, track.num_frames - 1)])
            ticks = first + self._ticks(track)
            inside = (ticks < track.end_pts) & (start < track.num_frames)
            numbers = shown_at(track, ticks)
        if inside.all():
            return numbers
        if self.short == "error":
            raise DataError(
                f"the video has {track.num_frames} frames, and the clip {self.described} from "
                f"frame {start} on has {int(inside.sum())} of its {self.frames}: take "
                "short='mask' or short='repeat', or leave the sample out"
            )
        if self.short == "mask":
            return np.where(inside, numbers, -1)
        last = int(numbers[inside][-1]) if inside.any() else track.num_frames - 1
        return np.where(inside, numbers, last)

    @property
    def described(self) -> str:
        rate = f"stride={self.stride}" if self.fps is None else f"fps={self.fps}"
        return f"(frames={self.frames}, {rate})"

    def _ticks(self, track: Timeline) -> NDArray[np.int64]:
        """Times of the clip's frames from its first one, rounded down to ticks."""
        assert self.fps is not None
        rate = Fraction(self.fps).limit_denominator(_MAX_DENOMINATOR)
        seconds, ticks = track.time_base
        step = Fraction(ticks, seconds) / rate
        # Python's integers: they can't overflow.
        return np.array(
            [i * step.numerator // step.denominator for i in range(self.frames)], np.int64
        )


def frames_at_seconds(track: Track, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """The frame that is on the screen at each time, counted from the first frame."""
    times = np.array([track.tick_at(value) for value in seconds.tolist()], np.int64)
    if len(times) and (times.min() < track.pts[0] or times.max() >= track.end_pts):
        numerator, denominator = track.time_base
        length = (track.end_pts - int(track.pts[0])) * numerator / denominator
        raise DataError(
            f"times {float(seconds.min()):g} to {float(seconds.max()):g} s are asked for, and the "
            f"video lasts {length:g} s"
        )
    return shown_at(track, times)
