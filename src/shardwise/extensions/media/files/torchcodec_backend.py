"""Decoding by torchcodec: one small mp4 of a clip's runs of coded frames, read once from its start.

torchcodec gives the GIL free for a whole clip, so its decoders run in threads; importing it costs
3.6 CPU-seconds and 320 MB a process, which speaks against it in worker processes.

Opening a decoder costs 6 ms, for FFmpeg decodes a picture to know the stream. At each key frame on
its way torchcodec seeks, and has decoded two pictures behind it by then, for the last ones before
it are given out late. So all runs that begin with an IDR share a decoder, which is told of one key
frame, the first (`custom_frame_mappings`): there is nothing to seek, and no scan of the file.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingExtraError
from shardwise.base.stages import spent_in
from shardwise.base.torch_import import import_torch
from shardwise.extensions.media.files.made_description import make_description, with_lengths
from shardwise.extensions.media.files.pictures import PictureForm
from shardwise.extensions.media.files.references import is_refresh
from shardwise.extensions.media.files.small_mp4 import (
    FRAME_TICKS,
    SECOND_TICKS,
    SmallMp4,
    small_mp4,
)
from shardwise.extensions.media.files.track import Segment, Track

Run = tuple[Segment, Sequence[bytes | memoryview]]
Place = Callable[[int, NDArray[np.uint8]], None]

# Pictures of one call: they are copied into their rows before the next call.
_CALL_BYTES = 16 << 20


def joined_runs(track: Track, runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that one decoder can decode one after the other, in order.

    A run joins the one before it if its first picture is an IDR: of nothing before that does
    anything remain in a decoder.
    """
    groups: list[list[Run]] = []
    for run in runs:
        if groups and is_refresh(track, run[1][0]):
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def call_bytes(form: PictureForm, num_wanted: int) -> int:
    """Bytes of pictures that torchcodec gives at once, of a number of wanted ones."""
    return min(num_wanted, _call_frames(form)) * _picture_bytes(form)


def decode_with_torchcodec(
    track: Track, runs: Sequence[Run], form: PictureForm, *, place: Place
) -> None:
    """Decode a group of `joined_runs`, and call `place` with each wanted picture, in order.

    It gets the number in decode order and pixels `[*form.scaled, 3]`, which it must copy. Where a
    decoder had to begin again, it gets a picture a second time.

    Raises:
        DataError: the decoder fails, or gives other than the frames that were asked for.
        MissingExtraError: torchcodec is not installed, or does not load.
    """
    decoders = _import_torchcodec()
    torch = import_torch()
    if multiprocessing.parent_process() is not None or torch.get_num_threads() == 1:
        # torch's parallel regions cost 1.5 to 2.1 times the CPU. The loader's worker processes are
        # started with one thread (OMP_NUM_THREADS), torch's by multiprocessing; in the trainer's
        # own process the number of threads is the trainer's.
        torch.set_num_threads(1)
    if len(runs) > 1:
        try:
            _decode(track, _joined(runs), form, decoders, place)
        except DataError:
            # A stream may forbid what lies before an IDR to be given out behind it, and the error
            # of a damaged one is to name its run: each alone.
            pass
        else:
            return
    for run in runs:
        _decode(track, run, form, decoders, place)


def _joined(runs: Sequence[Run]) -> Run:
    segments = [segment for segment, _ in runs]
    samples = np.concatenate([segment.samples for segment in segments])
    wanted = np.concatenate([segment.wanted for segment in segments])
    return Segment(samples, wanted), [payload for _, payloads in runs for payload in payloads]


def _decode(track: Track, run: Run, form: PictureForm, decoders: Any, place: Place) -> None:
    segment, payloads = run
    if not track.description:  # of another container than mp4
        track = replace(track, description=make_description(track, payloads))
        payloads = [with_lengths(track, payload) for payload in payloads]
    file = small_mp4(track, segment.samples, payloads)
    is_resized = form.scaled != (form.height, form.width)
    try:
        # A stream that is of another size than its header, or changes it, is resized all the same.
        try:
            _give_out(decoders, file, segment, form, place, is_resized=is_resized)
        except RuntimeError:
            if is_resized:
                raise
            _give_out(decoders, file, segment, form, place, is_resized=True)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        first, last = int(segment.samples[0]), int(segment.samples[-1])
        raise DataError(
            f"{track.codec}: coded frames {first} to {last} can't be decoded: "
            f"{str(error).splitlines()[0]}",
            offset=int(track.columns.offset[first]) if track.is_ranged else None,
        ) from error


def _give_out(
    decoders: Any,
    file: SmallMp4,
    segment: Segment,
    form: PictureForm,
    place: Place,
    *,
    is_resized: bool,
) -> None:
    shown = np.sort(file.pts)
    transforms = None
    if is_resized:
        transforms = [import_module("torchcodec.transforms").Resize(form.scaled)]
    decoder = decoders.VideoDecoder(
        file.data,
        dimension_order="NHWC",
        num_ffmpeg_threads=1,
        transforms=transforms,
        custom_frame_mappings=_mappings(shown),
    )
    wanted_pts = file.pts[np.searchsorted(segment.samples, segment.wanted)]
    # In the order of showing: nothing is decoded twice.
    order = np.argsort(wanted_pts)
    at_once = _call_frames(form)
    for begin in range(0, len(order), at_once):
        rows = order[begin : begin + at_once]
        decoded = decoder.get_frames_at(np.searchsorted(shown, wanted_pts[rows]).tolist())
        pixels: NDArray[np.uint8] = decoded.data.numpy()
        if pixels.shape[1:] != (*form.scaled, 3):
            raise RuntimeError(f"the pictures are {pixels.shape[1:]}, not {(*form.scaled, 3)}")
        pts = np.rint(decoded.pts_seconds.numpy() * SECOND_TICKS).astype(np.int64)
        if (pts != wanted_pts[rows]).any():
            # torchcodec takes the next picture for one that the decoder leaves out.
            raise RuntimeError("the decoder leaves out pictures")
        with spent_in("convert"):
            for number, picture in zip(segment.wanted[rows].tolist(), pixels, strict=True):
                place(number, picture)
        # Not beside the next ones.
        del decoded, pixels, picture


def _mappings(shown: NDArray[np.int64]) -> str:
    """The frames of a file as torchcodec wants them described, so that it need not scan them."""
    frames = [
        {"pts": pts, "duration": FRAME_TICKS, "key_frame": int(not row)}
        for row, pts in enumerate(shown.tolist())
    ]
    return json.dumps({"frames": frames})


def _call_frames(form: PictureForm) -> int:
    return max(1, _CALL_BYTES // _picture_bytes(form))


def _picture_bytes(form: PictureForm) -> int:
    return 3 * form.scaled[0] * form.scaled[1]


def _import_torchcodec() -> Any:
    try:
        return import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingExtraError(
            f"backend='torchcodec' needs torchcodec, which does not load ({error!s:.120})",
            extra="video",
        ) from error
