"""Sound of one length: what `decoder_kwargs` says where the key is that of audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.media_files.byte_reader import BytesReader
from shardwise.media_files.sound_window import length_at, open_sound, read_window

__all__ = ["SoundDecoder"]


@dataclass(frozen=True)
class SoundDecoder:
    """Decodes the first seconds of a sound; video2dataset's `AudioDecoder`.

    Args:
        sample_rate: samples a second of the result.
        num_channels: 1 for the mean of all; None for the file's.
        extension: has no effect: the file says what it is.
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
        """Decode one file: "sound", and what video2dataset puts beside it.

        Raises:
            DataError: it is damaged, or has no sound.
        """
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
