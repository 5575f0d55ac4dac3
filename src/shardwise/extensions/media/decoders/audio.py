"""The audio decoder: a part of the sound of a file, exact to the sample.

With `seconds`, `rate` and `channels`, every value has one shape and is written straight into its
row of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice, check_number, suggest_names
from shardwise.base.errors import DataError
from shardwise.extensions.media.decoders.part_decoder import PartDecoder
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.sound_window import length_at, open_sound, read_window


@dataclass(frozen=True, repr=False)
class Audio(PartDecoder):
    """A decoder of sound; `audio` makes it and documents its attributes."""

    _row_needs = "seconds, rate and channels"

    seconds: float | None = None
    rate: int | None = None
    channels: int | None = None
    start: str | float = "first"
    short: str = "mask"
    limits: Limits = field(default=DEFAULT_LIMITS)

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < 1e6:
            raise ValueError(f"audio(seconds={self.seconds}): must be above 0 and under 1000000")
        if self.rate is not None:
            check_number("audio(rate=)", self.rate)
        if self.rate is not None and not 100 <= self.rate <= 1_000_000:
            raise ValueError(f"audio(rate={self.rate}): must be 100 to 1000000")
        if self.channels is not None and not 1 <= self.channels <= 64:
            raise ValueError(f"audio(channels={self.channels}): must be 1 to 64")
        check_choice("short", self.short, ("error", "mask", "repeat"), of="audio")
        if isinstance(self.start, str):
            check_choice(
                "start", self.start, ("first", "center", "random"), of="audio", more=" or seconds"
            )
            if self.seconds is None and self.start != "first":
                raise ValueError(f"audio(start={self.start!r}): of how many seconds? Add seconds=")
        elif not 0 <= self.start < 1e6:
            raise ValueError(f"audio(start={self.start}): must be 0 or more seconds")

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None unless seconds, rate and channels are set."""
        if self.seconds is None or self.rate is None or self.channels is None:
            return None
        return (self.channels, round(self.seconds * self.rate)), np.dtype(np.float32)

    @property
    def gives_mask(self) -> bool:
        """Whether zeros may follow the sound; a dataset then marks them in a mask field."""
        return self.short == "mask" and self.seconds is not None

    @property
    def mask_row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every mask; None unless seconds and rate are set."""
        if self.seconds is None or self.rate is None:
            return None
        return (round(self.seconds * self.rate),), np.dtype(np.bool_)

    def _decode(
        self, data: bytes | memoryview, rng: np.random.Generator | None, out: NDArray[Any] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        sound = open_sound(BytesReader(data), limits=self.limits)
        rate = self.rate or sound.rate
        length = length_at(sound, rate)
        start = 0 if isinstance(self.start, str) else round(self.start * rate)
        count = max(0, length - start) if self.seconds is None else round(self.seconds * rate)
        room = length - count
        if self.start == "center":
            start = max(0, room // 2)
        elif self.start == "random" and room > 0:
            start = self._draw(rng, room + 1)
        inside = min(count, max(0, length - start))
        if not inside or (inside < count and self.short == "error"):
            raise DataError(
                f"the sound lasts {length / rate:g} s, and {count / rate:g} s from "
                f"{start / rate:g} s on are asked for"
            )
        if self.short == "repeat" and inside < count:
            part = read_window(sound, start, inside, rate=rate, channels=self.channels)
            part = np.take(part, np.arange(count) % inside, axis=1)
        else:
            part = read_window(sound, start, count, rate=rate, channels=self.channels)
        if out is not None:
            out[...] = part
        # Comparing numbers of samples took as long as reading 10 s of WAV: 1 ms.
        mask = np.zeros(count, np.bool_)
        mask[:inside] = True
        return part, mask


@suggest_names
def audio(
    *,
    seconds: float | None = None,
    rate: int | None = None,
    channels: int | None = None,
    start: Literal["first", "center", "random"] | float = "first",
    short: Literal["error", "mask", "repeat"] = "mask",
    max_frames: int = DEFAULT_LIMITS.max_frames,
) -> Audio:
    """Decode a part of the sound of a file: wav, flac, ogg, opus, mp3, m4a, or of a video.

    Sample 0 is the first one that is heard: what an encoder puts before it is left out, so parts of
    an mp3 lie where those of the wav do. Only the part is decoded, with a short run-up.

    Args:
        seconds: length of the part; None for all from `start` on.
        rate: samples per second of the result; None keeps the file's. soxr resamples it, so that a
            part is to the bit what it is in the whole.
        channels: None keeps the file's, 1 is the mean of all; a single channel is copied to more.
        start: "first", "center", or "random", by a generator keyed by (seed, epoch, sample); or
            seconds.
        short: for sound that is too short: zeros after it ("mask"), the part again ("repeat"), or
            "error". With "mask" and `seconds` a dataset has a field "<field>.mask", too: bool
            `[samples]`, False for the zeros.
        max_frames: the most packets that a file may have.

    Returns:
        A decoder of bytes to float32 arrays `[channels, samples]`, from -1 to 1.

    Raises:
        DataError: (when called) the file is damaged, cut, or has no sound.
        MissingExtraError: (when called) no package that decodes it is installed.

    Examples:
        >>> audio(seconds=2, rate=16000, channels=1).row
        ((1, 32000), dtype('float32'))
    """
    return Audio(seconds, rate, channels, start, short, Limits(max_frames=max_frames))
