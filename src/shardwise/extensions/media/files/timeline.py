"""The times at which the frames of a video, or of a part of it, are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.media.files.track import Track


@dataclass(frozen=True)
class Span:
    """Some neighbouring frames of a track, counted from 0."""

    track: Track
    first: int
    stop: int

    @property
    def num_frames(self) -> int:
        return self.stop - self.first

    @property
    def pts(self) -> NDArray[np.int64]:
        return self.track.pts[self.first : self.stop]

    @property
    def end_pts(self) -> int:
        """The tick at which the last one's time ends."""
        if self.stop < self.track.num_frames:
            return int(self.track.pts[self.stop])
        return self.track.end_pts

    @property
    def time_base(self) -> tuple[int, int]:
        return self.track.time_base


# Frames in the order of showing.
Timeline: TypeAlias = Track | Span


def shown_at(timeline: Timeline, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frame that is on the screen at each time; -1 before the first, the last after it."""
    return np.searchsorted(timeline.pts, ticks, side="right") - 1


def span_between(track: Track, start: float, end: float) -> Span:
    """The frames from one time to another, in seconds from the first frame.

    Each time is taken for the nearest border of two frames: times in lists of scenes are rounded,
    and a frame of the scene before would be a wrong one.
    """
    borders = np.append(track.pts, track.end_pts)
    places = []
    for seconds in (start, end):
        tick = track.tick_at(seconds)
        place = min(int(np.searchsorted(borders, tick, side="left")), len(borders) - 1)
        if place and tick - int(borders[place - 1]) < int(borders[place]) - tick:
            place -= 1
        places.append(place)
    first, stop = places
    return Span(track, min(first, track.num_frames), max(first, stop))


def stop_of_all(track: Track, others: Sequence[Track]) -> int:
    """The frame at which a video ends, or the first of other videos that start with it."""
    stop = track.num_frames
    for other in others:
        seconds = (other.end_pts - int(other.pts[0])) * Fraction(*other.time_base)
        limit = int(track.pts[0]) + seconds / Fraction(*track.time_base)
        stop = min(stop, int(np.searchsorted(track.pts, -(-limit // 1), side="left")))
    return stop


def frames_beside(track: Track, other: Track, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frames of another video that are on the screen with frames of this one; -1 stays.

    Both start at one moment. Times are rounded by containers: one tick of the coarser is allowed.
    """
    tick, other_tick = Fraction(*track.time_base), Fraction(*other.time_base)
    slack = max(tick, other_tick)
    times = [
        int(other.pts[0]) + ((pts - int(track.pts[0])) * tick + slack) // other_tick
        for pts in track.pts[np.maximum(frames, 0)].tolist()
    ]
    return np.where(frames < 0, -1, shown_at(other, np.array(times, np.int64)))


def num_every(timeline: Timeline, seconds: Fraction, num_starts: int) -> int:
    """Clips that can start at the first frame and every `seconds` after it."""
    if num_starts < 1:
        return 0
    at_end = num_starts == timeline.num_frames
    limit = (timeline.end_pts if at_end else int(timeline.pts[num_starts])) - int(timeline.pts[0])
    return int(-(-limit // _ticks_of(timeline, seconds)))


def start_every(timeline: Timeline, seconds: Fraction, number: int) -> int:
    """The frame on the screen at the time of this number."""
    step = _ticks_of(timeline, seconds)
    tick = int(timeline.pts[0]) + number * step.numerator // step.denominator
    return int(shown_at(timeline, np.array([tick], np.int64))[0])


def _ticks_of(timeline: Timeline, seconds: Fraction) -> Fraction:
    return seconds / Fraction(*timeline.time_base)
