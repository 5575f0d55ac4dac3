"""The frames of one clip in one epoch, and the bytes that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.media.clips.options import ClipOptions
from shardwise.extensions.media.files.coded_frames import ranges_to_read
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.sound import packets_of
from shardwise.extensions.media.files.timeline import Span, frames_beside
from shardwise.extensions.media.files.track import Track


@dataclass(frozen=True, eq=False)
class ChosenClip:
    """A clip as integers.

    Attributes:
        sample: the id of its video's sample in the source.
        index: the video's index.
        frames: int64 `[T]`, numbers of frames in the video; -1 for one that is not there.
        ticks: the first tick, and the length in ticks, of the time that it shows.
    """

    sample: int
    index: MediaIndex
    frames: NDArray[np.int64]
    ticks: tuple[int, Fraction]

    @classmethod
    def of(
        cls, sample: int, index: MediaIndex, part: Span, start: int, options: ClipOptions
    ) -> ChosenClip:
        """The clip that starts at a frame of a part of a video."""
        numbers = options.rule.numbers(part, start)
        frames = np.where(numbers < 0, -1, numbers + part.first)
        first = int(part.pts[start])
        return cls(sample, index, frames, (first, _length(part.track, frames, options)))

    def beside(self, index: MediaIndex) -> ChosenClip:
        """The clip of the same moments of another video of the sample."""
        track = index.first("video")
        frames = frames_beside(self.index.first("video"), track, self.frames)
        return ChosenClip(self.sample, index, frames, self.ticks)

    def described(self) -> dict[str, Any]:
        """The clip's values in "__media__"."""
        pts = self.index.first("video").pts
        return {
            "frames": self.frames.tolist(),
            "pts": [int(pts[number]) if number >= 0 else -1 for number in self.frames.tolist()],
            "time_base": self.index.first("video").time_base,
        }

    def ranges(self, *, pictures: bool, sound: bool) -> list[tuple[int, int]]:
        """The ranges of the file that decoding reads; all of a file whose frames are scattered."""
        has_sound = sound and any(track.kind == "audio" for track in self.index.tracks)
        tracks = [self.index.first("video")] + ([self.index.first("audio")] if has_sound else [])
        if not all(track.is_ranged for track in self.index.tracks):
            return [(0, self.index.num_bytes)] if pictures or has_sound else []
        coded = []
        if pictures:
            segments = tracks[0].segments(self.frames[self.frames >= 0])
            coded += [(tracks[0], each.samples) for each in segments]
        if has_sound:
            coded.append((tracks[1], self._packets(*tracks)))
        return ranges_to_read(coded)

    def _packets(self, picture: Track, sound: Track) -> NDArray[np.int64]:
        """The packets of the sound of the same time, with room for the rounding of times."""
        tick, sound_tick = Fraction(*picture.time_base), Fraction(*sound.time_base)
        begin = self.ticks[0] * tick - sound.origin * sound_tick
        end = begin + self.ticks[1] * tick
        low, _, high = packets_of(sound, floor(begin * sound.rate) - 2, ceil(end * sound.rate) + 2)
        return np.arange(low, high)


def _length(track: Track, frames: NDArray[np.int64], options: ClipOptions) -> Fraction:
    """The time that a clip shows, in ticks.

    Containers round times. If a clip's frames match the video's mean rate within two ticks, that
    rate counts: the sound of all clips has one length.
    """
    tick = Fraction(*track.time_base)
    if options.fps is not None:
        rate = Fraction(options.fps).limit_denominator(1_000_000)
        return options.frames / rate / tick
    mean = Fraction(track.end_pts - int(track.pts[0]), track.num_frames)
    length = options.frames * options.stride * mean
    shown = frames[frames >= 0]
    between = int(track.pts[shown[-1]]) - int(track.pts[shown[0]])
    expected = int(shown[-1] - shown[0]) * mean
    if abs(between - expected) <= 2:
        return length
    behind = int(shown[-1]) + options.stride
    end = int(track.pts[behind]) if behind < track.num_frames else track.end_pts
    return Fraction(end - int(track.pts[shown[0]]))
