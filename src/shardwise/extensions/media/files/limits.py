"""Limits of what a header may promise, checked before memory is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.base.errors import DataError


@dataclass(frozen=True)
class Limits:
    """The largest media file that is decoded.

    Attributes:
        max_pixels: height x width of a picture; the default is twice an 8K picture.
        max_frames: coded frames or packets of a track; the default is 46 hours at 60 a second.
    """

    max_pixels: int = 1 << 26
    max_frames: int = 10_000_000

    def check_frames(self, num_frames: int, what: str) -> None:
        """Raise DataError for a track that promises too many frames."""
        if num_frames > self.max_frames:
            raise DataError(
                f"the header promises {num_frames} {what}, more than max_frames={self.max_frames}: "
                "raise it if you trust the data"
            )

    def check_picture(self, height: int, width: int) -> None:
        """Raise DataError for too large a picture, or one without an area."""
        if height < 1 or width < 1:
            raise DataError(f"the header promises pictures of {height} x {width} pixels")
        if height * width > self.max_pixels:
            raise DataError(
                f"the header promises {height} x {width} pixels, more than "
                f"max_pixels={self.max_pixels}: raise it if you trust the data"
            )


DEFAULT_LIMITS = Limits()
