"""Frames of a video as an array: index, range, decoder, rows. The one way in which all are made."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.engine.batch.decoder_memory import decoder_bytes, picture_memory
from shardwise.extensions.media.files.byte_reader import RangeReader
from shardwise.extensions.media.files.coded_frames import (
    read_segments,
    with_payloads,
    without_unneeded,
)
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.pictures import PictureForm
from shardwise.extensions.media.files.pyav_backend import decode_with_pyav
from shardwise.extensions.media.files.references import is_refresh, is_whole_by_itself
from shardwise.extensions.media.files.torchcodec_backend import (
    Run,
    call_bytes,
    decode_with_torchcodec,
    joined_runs,
)
from shardwise.extensions.media.files.track import Segment, Track

BACKENDS = ("auto", "pyav", "torchcodec")


def form_of(
    index: MediaIndex,
    *,
    size: tuple[int, int] | None = None,
    fit: str = "stretch",
    layout: str = "TCHW",
) -> PictureForm:
    """What the pictures of a video become."""
    track = index.first("video")
    return PictureForm(track.height, track.width, track.rotation, size, fit, layout)


def decode_frames(
    reader: RangeReader,
    index: MediaIndex,
    frames: NDArray[np.int64],
    *,
    form: PictureForm,
    out: NDArray[np.uint8] | None = None,
    backend: str = "auto",
    limits: Limits = DEFAULT_LIMITS,
) -> NDArray[np.uint8]:
    """Decode frames by their number in the order of showing, any order and repeats included.

    Args:
        reader: the file.
        index: its index.
        frames: int64 `[T]`; -1 for a frame of zeros.
        form: size and layout.
        out: where to write, of the shape of `form`; None for a new array.
        backend: "pyav", "torchcodec", or "auto": PyAV where it is installed.
        limits: the largest picture.

    Returns:
        uint8 `[T, ...]` in `form.layout`.

    Raises:
        DataError: a frame is not there or damaged; never is another one returned for it.
    """
    track = index.first("video")
    if out is None:
        out = np.empty(form.shape(len(frames)), np.uint8)
    shown = frames >= 0
    for row in np.flatnonzero(~shown).tolist():
        (out[:, row] if form.layout == "CTHW" else out[row])[...] = 0
    if not shown.any():
        return out
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(track.order[np.minimum(frames, track.num_frames - 1)].tolist()):
        if shown[row]:
            rows.setdefault(number, []).append(row)
    index = with_payloads(index, reader, limits)
    target = out

    def place(number: int, pixels: NDArray[np.uint8]) -> None:
        for row in rows[number]:
            form.place(pixels, target, row)

    segments = track.segments(frames[shown])
    coded = read_segments(index, track, segments, reader)
    memory = decoder_bytes(track.height, track.width)
    runs: list[Run] = []

    def decode(segment: Segment, payloads: Sequence[bytes | memoryview]) -> None:
        with picture_memory().hold(memory):
            decode_with_pyav(track, segment, payloads, form, limits=limits, place=place)

    for segment, part in zip(segments, coded, strict=True):
        needed, payloads = without_unneeded(track, segment, part)
        # torchcodec counts by position, and FFmpeg 5 leaves out pictures of an open group.
        if _chosen(backend) != "pyav" and _is_closed(track, segment, payloads[0]):
            runs.append((needed, payloads))
            continue
        try:
            decode(needed, payloads)
        except DataError:
            earlier = _second_try(track, segment, payloads[0])
            if earlier is None:
                raise
            [part] = read_segments(index, track, [earlier], reader)
            decode(*without_unneeded(track, earlier, part))
    for group in joined_runs(track, runs):
        extra = call_bytes(form, sum(len(segment.wanted) for segment, _ in group))
        with picture_memory().hold(memory + extra):
            decode_with_torchcodec(track, group, form, place=place)
    return out


def _is_closed(track: Track, segment: Segment, first: bytes | memoryview) -> bool:
    """Whether no picture of a segment needs or names one before its first picture."""
    return track.codec != "h264" or (not segment.may_fail and is_refresh(track, first))


def _second_try(track: Track, segment: Segment, first: bytes | memoryview) -> Segment | None:
    """Where to begin again after an error that need not be damage; None if it must be."""
    if _is_closed(track, segment, first):
        return None
    return track.earlier(segment, whole=is_whole_by_itself(track, first))


def _chosen(backend: str) -> str:
    """The backend that "auto" means: the same in every process of a machine (I5)."""
    if backend != "auto":
        return backend
    return "torchcodec" if find_spec("av") is None and find_spec("torchcodec") else "pyav"
