"""The starts and numbers of the clips of videos. Pure: integers in and out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.permute import mix

# Sets the keys of jitter apart from whatever else is mixed from seed and epoch.
_JITTER = 0xC119


@dataclass(frozen=True)
class ClipWindows:
    """Rules for the starts of clips, among the frames at which one can start.

    Attributes:
        step: frames from one start to the next; None if `count` sets the number of clips.
            count: clips of each video without a `step`, in the middles of as many equal parts.
        jitter: a clip starts up to this many frames later, less one; another number each epoch.
    """

    step: int | None = None
    count: int = 1
    jitter: int = 0

    def num_clips(self, num_starts: int) -> int:
        """The clips of a video in which a whole one can start at `num_starts` frames.

        >>> ClipWindows(step=4).num_clips(9), ClipWindows(count=2).num_clips(9)
        (3, 2)
        """
        if num_starts < 1:
            return 0
        return self.count if self.step is None else -(-num_starts // self.step)

    def start(self, num_starts: int, number: int) -> int:
        """The start of a clip, before it is moved.

        >>> [ClipWindows(count=2).start(9, number) for number in range(2)]
        [2, 6]
        """
        if self.step is not None:
            return number * self.step
        return (2 * number + 1) * num_starts // (2 * self.count)

    def moved(self, start: int, num_starts: int, *, seed: int, epoch: int, clip: int) -> int:
        """The start of a clip in an epoch: keyed by (seed, epoch, clip), and inside the video."""
        room = min(self.jitter, num_starts - start)
        return start if room < 2 else start + mix(seed, epoch, _JITTER, clip) % room


@dataclass(frozen=True, eq=False)
class ClipTable:
    """The clips of a dataset's videos. A clip's id counts them in the order of the videos.

    A span is a whole video, or a cut of it. Spans without a clip are not in the table.

    Attributes:
        videos: int64 `[spans]`, ascending: the video that a span is of.
        firsts: int32 `[spans]`, its first frame.
        stops: int32 `[spans]`, the frame after its last one.
        cuts: int32 `[spans]`, the number of the cut; -1 for a whole video.
        counts: int32 `[spans]`, its clips.
        num_short: spans that are too short for a clip.
        num_bad: videos that can't be used.
    """

    videos: NDArray[np.int64]
    firsts: NDArray[np.int32]
    stops: NDArray[np.int32]
    cuts: NDArray[np.int32]
    counts: NDArray[np.int32]
    num_short: int = 0
    num_bad: int = 0

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts, dtype=np.int64)

    @classmethod
    def of_rows(
        cls, rows: list[tuple[int, int, int, int, int]], *, num_short: int = 0, num_bad: int = 0
    ) -> ClipTable:
        """A table of rows (video, first, stop, cut, clips), in the order of the videos."""
        videos, *others = np.array(rows, np.int64).reshape(-1, 5).T
        firsts, stops, cuts, counts = (column.astype(np.int32) for column in others)
        return cls(videos.copy(), firsts, stops, cuts, counts, num_short, num_bad)

    @property
    def num_clips(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find clips by id: (span, number in the span), int64 `[rows]` each."""
        spans = np.searchsorted(self._ends, ids, side="right").astype(np.int64)
        return spans, ids - (self._ends[spans] - self.counts[spans])

    def numbers(self, ids: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each clip in its video, int64 `[rows]`."""
        first = np.searchsorted(self.videos, self.videos[spans], side="left")
        return ids - (self._ends[first] - self.counts[first])

    def clips_by(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clips of each run of videos, int64 `[runs]`.

        Args:
            ends: the video after each run's last.
        """
        spans = np.searchsorted(self.videos, ends, side="left")
        before = np.concatenate([[0], self._ends])[spans]
        return np.diff(before, prepend=0).astype(np.int64)
