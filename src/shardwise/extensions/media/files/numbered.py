"""Numbered pictures of a sample as a video: `frame_%05d.jpg` names its frames.

Each picture is one coded frame, of the codec "pictures". They have no times: a tick each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.codecs import image
from shardwise.codecs.image_headers import probe
from shardwise.extensions.media.files.byte_reader import RangeReader
from shardwise.extensions.media.files.coded_run import CodedRun
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.track import Track, TrackColumns

_CODEC = "pictures"
_NUMBER = re.compile(r"%(?:0\d+)?d")


def numbered_fields(pattern: str, fields: Iterable[str]) -> list[str]:
    """The fields that a pattern names, in the order of their numbers.

    Examples:
        >>> numbered_fields("%05d.jpg", ["00010.jpg", "00002.jpg", "json"])
        ['00002.jpg', '00010.jpg']
    """
    parts = _NUMBER.split(pattern)
    if len(parts) != 2:
        raise ValueError(f"clips({pattern!r}): one number, such as %05d, names the pictures")
    named = re.compile(re.escape(parts[0]) + r"(\d+)" + re.escape(parts[1]))
    found = [(int(match[1]), name) for name in fields if (match := named.fullmatch(name))]
    if not found:
        raise ValueError(f"clips({pattern!r}): no field has such a name")
    return [name for _, name in sorted(found)]


def index_pictures(places: Sequence[tuple[int, int]], num_bytes: int) -> MediaIndex:
    """The index of pictures at some offsets, of some sizes, in a file."""
    offset, size = np.array(places, np.int64).reshape(-1, 2).T
    ones = np.ones(len(places), np.int64)
    columns = TrackColumns(
        np.arange(len(places)), ones, size.copy(), offset.copy(), ones > 0, ones > 0
    )
    return MediaIndex(num_bytes, (Track("video", _CODEC, b"", (1, 1), columns),))


def with_picture_size(
    index: MediaIndex, reader: RangeReader, frames: NDArray[np.int64]
) -> MediaIndex:
    """The index with the size of the first picture that is there; of other videos as it is."""
    track = index.tracks[0]
    wanted = frames[frames >= 0]
    if track.codec != _CODEC or not len(wanted):
        return index
    columns, first = track.columns, int(wanted[0])
    start = int(columns.offset[first])
    data = reader.read(start, start + int(columns.size[first]))
    try:
        header = probe(memoryview(data))
    except ValueError as error:
        raise DataError(f"picture {first} can't be read: {error}", offset=start) from error
    return replace(index, tracks=(replace(track, height=header.height, width=header.width),))


def decode_pictures(run: CodedRun) -> None:
    """Decode a run of pictures; a `VideoBackend`."""
    dtype = "uint8" if run.form.dtype == "uint8" else "uint16"
    options: dict[str, Any] = {"mode": run.form.mode, "size": run.form.scaled, "dtype": dtype}
    decoder = image(**options, layout="HWC", max_pixels=run.limits.max_pixels)
    for number, payload in zip(run.segment.samples.tolist(), run.payloads, strict=True):
        if number in run.segment.wanted:
            try:
                run.place(number, decoder(payload))
            except ValueError as error:
                raise DataError(
                    f"picture {number} can't be decoded: {error}",
                    offset=int(run.track.columns.offset[number]),
                ) from error
