"""One track of a media file: the position of each coded frame, and the time when it is shown.

Columns are in decode order, the order in which a file stores frames. A frame that is decoded and
never shown (it lies before an edit) stays in the columns, with `shown` False.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError

# Pictures that an H.264 decoder keeps for others at most.
_MAX_KEPT = 16


@dataclass(frozen=True, eq=False)
class TrackColumns:
    """The facts about each coded frame: arrays `[num_coded]` in decode order.

    Attributes:
        pts: int64, when it is shown, in ticks of the track's time base.
        duration: int64, in ticks.
        size: int64, bytes.
        offset: int64, where its bytes start in the file; -1 where they do not lie in one piece.
        key: bool, decoding can start here.
        shown: bool, it is shown.
    """

    pts: NDArray[np.int64]
    duration: NDArray[np.int64]
    size: NDArray[np.int64]
    offset: NDArray[np.int64]
    key: NDArray[np.bool_]
    shown: NDArray[np.bool_]


@dataclass(frozen=True)
class Segment:
    """A run of coded frames that is decoded from its first one, a key frame.

    Attributes:
        samples: int64, the numbers in decode order of the coded frames that are decoded.
        wanted: int64, those of them whose pictures are requested.
        may_fail: the numbers of frames that need pictures before the first one, which are missing.
            No wanted picture needs them; they only fill the decoder.
    """

    samples: NDArray[np.int64]
    wanted: NDArray[np.int64]
    may_fail: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Track:
    """A track of pictures or of sound.

    Attributes:
        kind: "video" or "audio".
        codec: FFmpeg's name of the codec.
        config: what the decoder must know before the first frame (FFmpeg's extradata).
        parameters: other facts of the container, as options of FFmpeg's decoders:
            colours, the codec's tag, the form of pixels that are not coded.
        time_base: seconds per tick, as (numerator, denominator).
        columns: its coded frames.
        height, width: of the stored picture, before it is turned.
        rotation: degrees by which the picture is to be turned counterclockwise: 0, 90, 180, 270.
        rate, num_channels: of sound, as in the container.
        origin: of sound, the tick at which the first sample is heard.
        lead: of sound, samples before the first one that is heard: the encoder's delay.
        length: of sound, samples that are heard, at `rate`.
        checksums: uint32, the CRC-32 of each group of pictures (a key frame up to the next), in
            decode order; None where they are not known.
    """

    kind: Literal["video", "audio"]
    codec: str
    config: bytes
    time_base: tuple[int, int]
    columns: TrackColumns = field(repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    height: int = 0
    width: int = 0
    rotation: int = 0
    rate: int = 0
    num_channels: int = 0
    origin: int = 0
    lead: int = 0
    length: int = 0
    checksums: NDArray[np.uint32] | None = field(default=None, repr=False)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The coded frames that are shown, in the order in which they are: int64 `[num_frames]`."""
        shown = np.flatnonzero(self.columns.shown)
        return shown[np.argsort(self.columns.pts[shown], kind="stable")]

    @cached_property
    def pts(self) -> NDArray[np.int64]:
        """The times at which frames are shown, in order, in ticks: int64 `[num_frames]`."""
        return self.columns.pts[self.order]

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.columns.key)

    @cached_property
    def sample_bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples at which each packet of sound starts and ends: int64 `[num_coded]` each.

        They count from the first one that is heard, at `rate`.
        """
        tick = self.rate * self.time_base[0] / self.time_base[1]
        starts = np.rint((self.columns.pts - self.columns.pts[0]) * tick).astype(np.int64)
        starts -= self.lead
        return starts, starts + np.rint(self.columns.duration * tick).astype(np.int64)

    @property
    def num_frames(self) -> int:
        return len(self.order)

    @property
    def is_ranged(self) -> bool:
        """Whether single frames can be read from the file by their offset."""
        return bool((self.columns.offset >= 0).all())

    @property
    def end_pts(self) -> int:
        """The tick at which the last frame's time ends; there must be one."""
        return int(self.pts[-1]) + max(1, int(self.columns.duration[self.order[-1]]))

    def tick_at(self, seconds: float) -> int:
        """The tick at some seconds from the first frame."""
        numerator, denominator = self.time_base
        # Round to the nearest microsecond: 0.1 is meant, not the float next to it.
        microseconds = round(seconds * 1_000_000)
        return int(self.pts[0]) + microseconds * denominator // (numerator * 1_000_000)

    def segments(self, frames: NDArray[np.int64]) -> list[Segment]:
        """The coded frames to decode for some frames, as runs from a key frame each.

        A run starts at the last key frame that is decoded and shown before the frame. Pictures
        that are shown before that key frame need what lies before it. They are left out, but of
        H.264, whose decoders take a missing number of a reference picture for an error.
        """
        if len(frames) and not 0 <= int(frames.min()) <= int(frames.max()) < self.num_frames:
            raise DataError(
                f"frames {int(frames.min())} to {int(frames.max())} are asked for, and the video "
                f"has {self.num_frames}"
            )
        wanted = np.unique(self.order[frames])
        runs: list[list[int]] = []  # [key, last]
        # The keys of neighbours may cross in open groups.
        for key, number in sorted((self._key_for(number), number) for number in wanted.tolist()):
            if runs and key <= runs[-1][1] + 1:  # neighbours are decoded in one go
                runs[-1][1] = max(runs[-1][1], number)
            else:
                runs.append([key, number])
        segments = []
        for key, last in runs:
            samples = np.arange(key, last + 1)
            leading = self.columns.pts[samples] < self.columns.pts[key]
            may_fail = samples[leading] if self.codec == "h264" else samples[:0]
            if self.codec != "h264":
                samples = samples[~leading]
            inside = (wanted >= key) & (wanted <= last)
            segments.append(Segment(samples, wanted[inside], frozenset(may_fail.tolist())))
        return segments

    def earlier(self, segment: Segment, *, whole: bool) -> Segment | None:
        """A segment that starts earlier, for one whose key frame lets a decoder miss pictures.

        With `whole`, slices from the key frame on name pictures before it without using them: those
        from a key frame 16 frames earlier on will do, as no decoder keeps more, and may be wrong.
        Otherwise (intra refresh) it starts with the file. None if nothing lies before it.
        """
        key = int(segment.samples[0])
        if key == 0:
            return None
        at = int(np.searchsorted(self.keys, key - _MAX_KEPT, side="right")) - 1
        begin = int(self.keys[at]) if whole and at >= 0 else 0
        samples = np.arange(begin, segment.samples[-1] + 1)
        return replace(segment, samples=samples, may_fail=frozenset(range(key) if whole else ()))

    def _key_for(self, number: int) -> int:
        """The last key frame from which a coded frame can be decoded; the first frame of all."""
        at = int(np.searchsorted(self.keys, number, side="right")) - 1
        while at >= 0:
            key = int(self.keys[at])
            if self.columns.pts[key] <= self.columns.pts[number]:
                return key
            at -= 1
        return 0

    def groups(self) -> NDArray[np.int64]:
        """The start of each group of pictures, and the end: int64 `[num_groups + 1]`."""
        num_coded = len(self.columns.pts)
        starts = self.keys if len(self.keys) and self.keys[0] == 0 else np.append(0, self.keys)
        return np.append(starts, num_coded) if num_coded else np.zeros(1, np.int64)
