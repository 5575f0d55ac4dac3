"""Decoding by PyAV: coded frames straight into one codec context, and each picture into its row.

The lightest backend: 0.17 CPU-seconds and 34 MB to import, and no torch. PyAV takes the GIL back
between frames, so it belongs into worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError
from shardwise.media_files.limits import Limits
from shardwise.media_files.pyav_import import import_av
from shardwise.media_files.pyav_packets import damaged, decoded_frames
from shardwise.media_files.track import Segment, Track
from shardwise.stages import spent_in


class RgbPictures:
    """Turns frames of PyAV into pixels of one size; for one thread.

    A clip needs one, not one a run of frames: making swscale's filters for another size takes
    0.1 ms.

    Args:
        height: of the pixels.
        width: of the pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        module = import_av("video").video.reformatter
        self._reformatter = module.VideoReformatter()
        self._form = {
            "height": height,
            "width": width,
            "format": "rgb24",
            "interpolation": module.Interpolation.BILINEAR,
            "threads": 1,
        }

    def pixels(self, frame: Any) -> NDArray[np.uint8]:
        """The pixels of a frame, uint8 `[height, width, 3]`."""
        made: NDArray[np.uint8] = self._reformatter.reformat(frame, **self._form).to_ndarray()
        return made


def decode_with_pyav(
    track: Track,
    segment: Segment,
    payloads: Sequence[bytes | memoryview],
    pictures: RgbPictures,
    *,
    limits: Limits,
    place: Callable[[int, NDArray[np.uint8]], None],
) -> None:
    """Decode a segment, and call `place(number, pixels)` with each wanted picture once.

    Args:
        track: the video.
        segment: what is decoded.
        payloads: the bytes of `segment.samples`.
        pictures: makes pixels of the frames.
        limits: the largest picture.
        place: gets number in decode order and pixels, which it must copy.

    Raises:
        DataError: a frame is damaged, or the decoder gives none for it.
    """
    pending = set(segment.wanted.tolist())
    samples = zip(segment.samples.tolist(), payloads, strict=True)
    decoded = decoded_frames(track, samples, limits, may_fail=segment.may_fail)
    for number, frame in decoded:
        if number not in pending:
            continue
        if frame.is_corrupt:
            raise damaged(track, number, "the decoder calls the picture damaged")
        pending.remove(number)
        with spent_in("convert"):
            place(number, pictures.pixels(frame))
        if not pending:
            return
    first = min(pending)
    offset = int(track.columns.offset[first])
    raise DataError(
        f"{track.codec}: the decoder gave no picture for {len(pending)} of "
        f"{len(segment.wanted)} frames, the first of them coded frame {first}",
        offset=offset if offset >= 0 else None,
    )
