"""The checked options of `Dataset.clips`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardwise.base.arguments import check_choice
from shardwise.extensions.media.clips.windows import ClipWindows
from shardwise.extensions.media.files.clip_frames import ClipRule
from shardwise.extensions.media.files.frames import check_backend
from shardwise.extensions.media.files.pictures import CHOICES
from shardwise.extensions.media.files.timeline import Timeline, num_every, start_every
from shardwise.plan.arguments import whole

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "short": ("drop", "mask", "repeat", "error"),
    **CHOICES,
    "audio": (None, "same"),
    "on_bad": ("error", "drop"),
}
# Floats such as 0.1 are meant as the fraction near them.
_MAX_DENOMINATOR = 1_000_000


@dataclass(frozen=True)
class ClipOptions:
    """The options of clips and their pictures; `Dataset.clips` documents each one."""

    field: str
    # Other fields, whose clips are of the same moments.
    others: tuple[str, ...] = ()
    frames: int = 16
    stride: int = 1
    step: int | None = None
    count: int | None = None
    seconds: float | None = None
    per_sample: int | None = None
    jitter: int = 0
    fps: float | Fraction | None = None
    cuts: str | None = None
    short: str = "drop"
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "TCHW"
    audio: str | None = None
    on_bad: str = "error"
    backend: str = "auto"
    mode: str = "rgb"
    dtype: str = "uint8"

    @property
    def described(self) -> str:
        """The options that decide which clips there are, for fingerprints: one text for equals."""
        parts = ("frames", "stride", "step", "count", "seconds", "jitter", "fps", "cuts", "short")
        text = ", ".join(f"{name}={getattr(self, name)!r}" for name in parts)
        more = f", per_sample={self.per_sample}" if self.per_sample else ""
        more += f", others={self.others}" if self.others else ""
        return f"{self.field!r}, {text}, audio={self.audio!r}, on_bad={self.on_bad!r}{more}"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of all videos; times are those of the first one."""
        return (self.field, *self.others)

    @property
    def cut_field(self) -> str | None:
        return self.cuts.split(".")[0] if self.cuts else None

    @property
    def rule(self) -> ClipRule:
        short = self.short if self.short in ("mask", "repeat") else "error"
        return ClipRule(self.frames, self.stride, self.fps, short)

    @property
    def every(self) -> Fraction | None:
        """Seconds from one clip to the next; None if frames or a count set the starts."""
        if self.seconds is not None:
            return Fraction(self.seconds).limit_denominator(_MAX_DENOMINATOR)
        if self.fps is not None and self.step is None and self.count is None and not self.cuts:
            rate = Fraction(self.fps).limit_denominator(_MAX_DENOMINATOR)
            return self.frames / rate
        return None

    @property
    def windows(self) -> ClipWindows:
        is_counted = self.count is not None or (
            self.cuts is not None and self.step is None and self.seconds is None
        )
        step = None if is_counted else self.step or self.frames * self.stride
        return ClipWindows(step, self.count or 1, self.jitter)

    def num_samples(self, timeline: Timeline) -> int:
        """The samples of a video or a cut: its clips, or groups of `per_sample` of them."""
        num_clips = self._num_clips(timeline)
        if self.per_sample is None:
            return num_clips
        is_filled = num_clips > 0 and self.short in ("mask", "repeat")
        return max(num_clips // self.per_sample, int(is_filled))

    def starts(
        self, timeline: Timeline, number: int, *, seed: int, epoch: int, sample: int
    ) -> list[int]:
        """The first frame of each clip in the sample of this number in a video or a cut.

        Seed, epoch and the sample's id key the jitter. A group that is not full repeats the last
        clip.
        """
        size, last = self.per_sample or 1, self._num_clips(timeline) - 1
        return [
            self._start(timeline, min(number * size + i, last), seed=seed, epoch=epoch,
                        clip=sample * size + i)
            for i in range(size)
        ]  # fmt: skip

    def _num_clips(self, timeline: Timeline) -> int:
        """The clips of a video or a cut: one if it is too short, and is to be filled up."""
        num_starts = self.rule.num_starts(timeline)
        if self._is_filled(num_starts):
            return int(timeline.num_frames > 0)
        every = self.every
        if every is not None:
            return num_every(timeline, every, num_starts)
        return self.windows.num_clips(num_starts)

    def _start(self, timeline: Timeline, number: int, *, seed: int, epoch: int, clip: int) -> int:
        num_starts = self.rule.num_starts(timeline)
        if self._is_filled(num_starts):
            return 0
        every, windows = self.every, self.windows
        if every is None:
            start = windows.start(num_starts, number)
        else:
            start = start_every(timeline, every, number)
        return windows.moved(start, num_starts, seed=seed, epoch=epoch, clip=clip)

    def _is_filled(self, num_starts: int) -> bool:
        return num_starts < 1 and self.short in ("mask", "repeat")


def checked_options(field: Any, **given: Any) -> ClipOptions:
    """The arguments of `Dataset.clips`, of the right types."""
    first, *others = _names(field)
    for name, choices in _CHOICES.items():
        check_choice(name, given[name], choices, of="clips")
    check_backend("clips", given["backend"])
    for name, least in (("frames", 1), ("stride", 1), ("jitter", 0)):
        given[name] = whole(name, given[name], least=least)
    for name in ("step", "count", "per_sample"):
        if given[name] is not None:
            given[name] = whole(name, given[name], least=1)
    for name, most in (("seconds", 1e6), ("fps", 1e4)):
        value = given[name]
        if value is not None and not isinstance(value, int | float | Fraction | np.number):
            raise TypeError(f"clips({name}={value!r:.60}): a number")
        if value is not None and not 1e-3 <= value < most:
            raise ValueError(f"clips({name}={value}): must be 0.001 or more and under {most:g}")
    if given["size"] is not None:
        given["size"] = _size(given["size"])
    if given["cuts"] is not None and not isinstance(given["cuts"], str):
        raise TypeError(f"clips(cuts={given['cuts']!r:.60}): a field of JSON, as 'json.scenes'")
    if all(given[name] is None for name in ("step", "count", "seconds")):
        given["count"] = given["per_sample"]
    options = replace(ClipOptions(first, tuple(others)), **given)
    _check_together(options)
    return options


def _names(field: Any) -> Sequence[str]:
    names = (field,) if isinstance(field, str) else field
    if not isinstance(names, list | tuple) or not names or not all(type(n) is str for n in names):
        raise TypeError(
            f"clips({field!r:.60}): the name of the field that has the videos, or their names"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"clips({field!r:.60}): a field is named twice")
    return names


def _check_together(options: ClipOptions) -> None:
    said = [n for n in ("step", "count", "seconds") if getattr(options, n) is not None]
    if len(said) > 1:
        one, other = said[:2]
        raise ValueError(
            f"clips({one}={getattr(options, one)}, {other}={getattr(options, other)}): only one of "
            "step=, count= and seconds= says where clips begin"
        )
    if options.fps is not None and options.stride != 1:
        raise ValueError(
            f"clips(fps={options.fps}, stride={options.stride}): only one of the two says which "
            "frames a clip has"
        )
    if options.per_sample is not None and options.audio is not None:
        raise ValueError(
            f"clips(per_sample={options.per_sample}, audio={options.audio!r}): sounds of several "
            "clips in one sample are not there: leave out one of the two"
        )
    timed = [name for name in ("fps", "seconds", "cuts", "audio") if getattr(options, name)]
    if timed and any("%" in name for name in options.fields):
        raise ValueError(
            f"clips({options.field!r}, {timed[0]}={getattr(options, timed[0])!r}): numbered "
            "pictures have neither times nor sound: say which by stride= and step= or count="
        )


def _size(size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int | np.integer) else size
    try:
        height, width = (whole("size", each, least=1) for each in pair)
    except (TypeError, ValueError):
        raise ValueError(f"clips(size={size!r:.60}): one number or (height, width)") from None
    if max(height, width) > 1 << 15:
        raise ValueError(f"clips(size={size}): height and width must be 1 to 32768")
    return height, width


assert {each.name for each in fields(ClipOptions)} >= set(_CHOICES)
