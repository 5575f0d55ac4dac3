"""Decoding by torchcodec: one small mp4 a run of coded frames, in exact mode.

torchcodec gives the GIL free for a whole clip, so its decoders run in threads; importing it costs
3.6 CPU-seconds and 320 MB a process, which speaks against it in worker processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError, MissingExtraError
from shardwise.media_files.made_description import make_description, with_lengths
from shardwise.media_files.pictures import PictureForm
from shardwise.media_files.small_mp4 import small_mp4
from shardwise.media_files.track import Segment, Track
from shardwise.torch_import import import_torch

__all__ = ["decode_with_torchcodec"]


def decode_with_torchcodec(
    track: Track,
    segment: Segment,
    payloads: Sequence[bytes | memoryview],
    form: PictureForm,
) -> NDArray[np.uint8]:
    """The pictures of a segment's wanted frames, uint8 `[frames, *form.scaled, 3]`.

    Args:
        track: the video.
        segment: what is decoded.
        payloads: the bytes of `segment.samples`.
        form: the size of the pictures.

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
    file = _file_of(track, segment, payloads)
    shown = np.argsort(np.argsort(track.columns.pts[segment.samples], kind="stable"), kind="stable")
    places = shown[np.searchsorted(segment.samples, segment.wanted)]
    is_resized = form.scaled != (form.height, form.width)

    def decode(*, is_resized: bool) -> NDArray[np.uint8]:
        decoder = decoders.VideoDecoder(
            file,
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
            seek_mode="exact",
            transforms=_resize(form) if is_resized else None,
        )
        if len(decoder) != len(segment.samples):
            raise DataError(
                f"{track.codec}: torchcodec finds {len(decoder)} frames in a run of "
                f"{len(segment.samples)} from coded frame {int(segment.samples[0])} on"
            )
        pixels: NDArray[np.uint8] = decoder.get_frames_at(places.tolist()).data.numpy()
        return pixels

    expected = (len(places), *form.scaled, 3)
    try:
        # A stream that is of another size than its header, or changes it, is resized all the same.
        try:
            pixels = decode(is_resized=is_resized)
        except RuntimeError:
            if is_resized:
                raise
            pixels = decode(is_resized=True)
        if pixels.shape != expected and not is_resized:
            pixels = decode(is_resized=True)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        first, last = int(segment.samples[0]), int(segment.samples[-1])
        raise DataError(
            f"{track.codec}: coded frames {first} to {last} can't be decoded: "
            f"{str(error).splitlines()[0]}",
            offset=int(track.columns.offset[first]) if track.is_ranged else None,
        ) from error
    if pixels.shape != expected:
        raise DataError(f"torchcodec gave pictures {pixels.shape}, not {expected}")
    return pixels


def _import_torchcodec() -> Any:
    try:
        return import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingExtraError(
            f"backend='torchcodec' needs torchcodec, which does not load ({error!s:.120})",
            extra="video",
        ) from error


def _resize(form: PictureForm) -> list[Any]:
    transforms = import_module("torchcodec.transforms")
    return [transforms.Resize(form.scaled)]


def _file_of(track: Track, segment: Segment, payloads: Sequence[bytes | memoryview]) -> bytes:
    """The frames in a small mp4, whatever container they come from."""
    if not track.description:
        track = replace(track, description=make_description(track, payloads))
        payloads = [with_lengths(track, payload) for payload in payloads]
    return small_mp4(track, segment.samples, payloads)
