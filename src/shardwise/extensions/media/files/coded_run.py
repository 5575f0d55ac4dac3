"""A run of coded frames, and what decodes it: the seam for a decoder on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.pictures import PictureForm
from shardwise.extensions.media.files.track import Segment, Track


@dataclass(frozen=True, eq=False)
class CodedRun:
    """The input of a `VideoBackend`.

    Attributes:
        track: the codec, and the container's facts about it.
        segment: which frames of the track, and which of them are requested.
        payloads: the bytes of each frame of the segment.
        form: the size of the pictures, `form.scaled`.
        limits: the largest picture.
        place: called with each wanted picture once: its number in decode order, and pixels
            `[*form.scaled, channels]` in `form.pixel_format`, which it copies.
    """

    track: Track
    segment: Segment
    payloads: Sequence[bytes | memoryview]
    form: PictureForm
    limits: Limits
    place: Callable[[int, NDArray[Any]], None]


# Raises DataError if a frame is damaged, or the decoder gives none for it; NotAKeyFrameError if the
# run does not start with a key frame, whatever the file claims.
VideoBackend: TypeAlias = Callable[[CodedRun], None]
