"""A camera of a LeRobotDataset: its frames by row, from files that hold many episodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.clip import Clip
from shardwise.extensions.media.clips.files import Part, hold_ranges, ranges_by_sample
from shardwise.extensions.media.clips.lone_files import LoneFiles
from shardwise.extensions.media.files.timeline import shown_at
from shardwise.extensions.media.files.track import Track
from shardwise.sources.files.folder import Listing, Names
from shardwise.sources.files.source import FilesSource
from shardwise.storage import PoolRanges, StorageOptions, is_local


class VideoFiles(FilesSource):
    """Files of a directory that are known without a look at it."""

    def __init__(self, root: str, names: Sequence[str], storage: StorageOptions) -> None:
        super().__init__(root, storage=storage)
        shards, opened_ns = [(name, 1) for name in names], time.time_ns()
        self.lone = LoneFiles(self, "mp4")
        self._files = Listing(root, Names(names), "mp4", {}, shards, opened_ns=opened_ns)

    def _list(self) -> Listing:
        return self._files


@dataclass(frozen=True, eq=False)
class Camera:
    """The pictures of a camera by row: the frame nearest to (row of the episode) / fps."""

    videos: VideoFiles
    numbers: NDArray[np.int64]  # the file of each episode
    begins_s: NDArray[np.float64]  # and where it starts there
    bounds: NDArray[np.int64]  # and its rows
    fps: float

    def owner_of(self, row: int) -> tuple[VideoFiles, int]:
        """The file that has the picture of a row."""
        return self.videos, int(self.numbers[np.searchsorted(self.bounds, row, side="right") - 1])

    def read(self, rows: NDArray[np.int64]) -> tuple[list[Clip], int]:
        """Read ranges with the frames of windows of rows, `[windows, T]`, and count bytes."""
        clips = self._choose_clips(rows)
        held, num_bytes = hold_ranges(self.videos.lone, list(map(_part, clips)))
        return list(map(Clip, held, clips)), num_bytes

    def ranges(self, rows: NDArray[np.int64]) -> Iterable[PoolRanges] | None:
        """The ranges that `read` fetches of videos whose indexes are in memory."""
        if is_local(self.videos.url):
            return None
        numbers = self.numbers[self._episodes(rows)].tolist()
        known = [self.videos.lone.has_index(number) for number in numbers]
        wanted = ranges_by_sample(map(_part, self._choose_clips(rows[known])))
        return self.videos.lone.ranges(wanted)

    def _episodes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.bounds, rows[:, 0], side="right") - 1

    def _choose_clips(self, rows: NDArray[np.int64]) -> list[ChosenClip]:
        episodes = self._episodes(rows)
        seconds = (rows - self.bounds[episodes, None]) / self.fps + self.begins_s[episodes, None]
        clips = []
        for number, own in zip(self.numbers[episodes].tolist(), seconds, strict=True):
            try:
                index = self.videos.lone.index(number)
                frames = _frames_at(index.first("video"), own, self.fps)
            except DataError as error:
                error.url, error.index = self.videos.lone.place(number)[0], None
                raise
            clips.append(ChosenClip(number, index, frames, (0, Fraction(0))))
        return clips


def _part(clip: ChosenClip) -> Part:
    return clip.sample, clip.index, clip.ranges(pictures=True, sound=False)


def _frames_at(track: Track, seconds: NDArray[np.float64], fps: float) -> NDArray[np.int64]:
    """The frames nearest to some times; DataError if one is not nearer than half a frame."""
    per_second = track.time_base[1] / track.time_base[0]
    ticks, half = int(track.pts[0]) + seconds * per_second, 0.5 * per_second / fps
    frames = shown_at(track, np.floor(ticks + half).astype(np.int64))
    off = np.abs(track.pts[frames] - ticks)
    if frames.min() < 0 or off.max() > half:
        raise DataError(f"no frame at {seconds[off.argmax()]:g} s, where an episode has one")
    return frames
