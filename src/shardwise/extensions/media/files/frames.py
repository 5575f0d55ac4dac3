"""Frames of a video as an array: index, range, decoder, rows. The one way in which all are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base import plugins
from shardwise.base.arguments import near_name
from shardwise.base.errors import DataError
from shardwise.engine.batch.prefetch import decoder_bytes, picture_memory
from shardwise.extensions.media.files.byte_reader import RangeReader
from shardwise.extensions.media.files.coded_frames import read_segments, with_payloads
from shardwise.extensions.media.files.coded_run import CodedRun, VideoBackend
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.pictures import PictureForm
from shardwise.extensions.media.files.pyav_packets import NotAKeyFrameError
from shardwise.extensions.media.files.references import is_refresh, is_whole_by_itself
from shardwise.extensions.media.files.track import Segment, Track

# The group of `shardwise.base.plugins` that backends are looked up in.
_BACKENDS = "video_backends"


def check_backend(function: str, backend: str) -> None:
    """Raise ValueError for a backend that nothing adds."""
    if backend != "auto" and not (isinstance(backend, str) and plugins.has(_BACKENDS, backend)):
        known = ("auto", *plugins.own_names(_BACKENDS))
        raise ValueError(
            f"{function}(backend={backend!r:.60}): use one of {', '.join(map(repr, known))}, or an "
            f"entry point of the group 'shardwise.{_BACKENDS}'{near_name(backend, known)}"
        )


def form_of(index: MediaIndex, **options: Any) -> PictureForm:
    """The output form of a video's pictures, with the options of `PictureForm`."""
    track = index.first("video")
    return PictureForm(track.height, track.width, track.rotation, **options)


def decode_frames(
    reader: RangeReader,
    index: MediaIndex,
    frames: NDArray[np.int64],
    *,
    form: PictureForm,
    out: NDArray[Any] | None = None,
    backend: str = "auto",
    limits: Limits = DEFAULT_LIMITS,
) -> NDArray[Any]:
    """Decode frames by their number in the order of showing, int64 `[T]`, in any order.

    -1 gives a frame of zeros. The result has the layout and the dtype of `form`, as has `out`.
    """
    track = index.first("video")
    if out is None:
        out = np.empty(form.shape(len(frames)), form.dtype)
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

    def place(number: int, pixels: NDArray[Any]) -> None:
        for row in rows[number]:
            form.place(pixels, target, row)

    segments = track.segments(frames[shown])
    coded = read_segments(index, track, segments, reader)
    memory = decoder_bytes(track.height, track.width)
    decode_run: VideoBackend = plugins.find(_BACKENDS, _choose_backend(track, backend))

    def decode(segment: Segment, payloads: Sequence[bytes | memoryview]) -> None:
        with picture_memory().hold(memory):
            decode_run(CodedRun(track, segment, payloads, form, limits, place))

    for segment, part in zip(segments, coded, strict=True):
        try:
            decode(segment, part)
        except DataError as error:
            earlier = _second_try(track, segment, part[0], error)
            if earlier is None:
                raise
            [part] = read_segments(index, track, [earlier], reader)
            decode(earlier, part)
    return out


def _choose_backend(track: Track, backend: str) -> str:
    if track.codec == "pictures":
        return "pictures"
    return "pyav" if backend == "auto" else backend


def _second_try(
    track: Track, segment: Segment, first: bytes | memoryview, error: DataError
) -> Segment | None:
    """The segment to try after an error that need not be damage; None if it must be."""
    if isinstance(error, NotAKeyFrameError):
        return track.earlier(segment, whole=False)
    if track.codec != "h264" or (not segment.may_fail and is_refresh(track, first)):
        return None
    return track.earlier(segment, whole=is_whole_by_itself(track, first))
