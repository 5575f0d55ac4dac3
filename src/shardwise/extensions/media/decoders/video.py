"""The video decoder: one clip per sample, of exactly the requested frames.

Which frames follows from integers; the decoder has no say in it. With a size, every clip of a
field has one shape, and its pictures are written straight into its row of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.extensions.media.decoders.part_decoder import PartDecoder
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.clip_frames import ClipRule
from shardwise.extensions.media.files.frames import check_backend, decode_frames, form_of
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.pictures import CHOICES, clip_shape

_CHOICES = {"short": ("error", "mask", "repeat"), **CHOICES}


@dataclass(frozen=True, repr=False)
class Video(PartDecoder):
    """A decoder of video files; `video` makes it and documents its attributes."""

    _always_shown = "frames"
    _row_needs = "a size: video(size=(height, width))"

    frames: int = 16
    stride: int = 1
    fps: float | Fraction | None = None
    start: str | int = "center"
    short: str = "error"
    size: tuple[int, int] | None = None
    fit: str = "stretch"
    layout: str = "TCHW"
    backend: str = "auto"
    limits: Limits = field(default=DEFAULT_LIMITS)
    mode: str = "rgb"
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices, of="video")
        check_backend("video", self.backend)
        for name in ("frames", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"video({name}={getattr(self, name)}): must be 1 or more")
        if self.fps is not None and not 0 < self.fps < 10_000:
            raise ValueError(f"video(fps={self.fps}): must be above 0 and under 10000")
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"video(fps={self.fps}, stride={self.stride}): only one of the two")
        if isinstance(self.start, str):
            choices = ("center", "first", "random")
            check_choice("start", self.start, choices, of="video", more=" or a frame")
        if not isinstance(self.start, str | int) or (
            isinstance(self.start, int) and self.start < 0
        ):
            raise ValueError(f"video(start={self.start!r}): must be a frame's number, 0 or more")
        if self.size is not None and not 1 <= min(self.size) <= max(self.size) <= 1 << 15:
            raise ValueError(f"video(size={self.size}): height and width must be 1 to 32768")

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every clip; None without a size."""
        if self.size is None:
            return None
        return clip_shape(self.frames, *self.size, self.layout, self.mode), np.dtype(self.dtype)

    @property
    def gives_mask(self) -> bool:
        """Whether clips may have frames of zeros; a dataset then marks them in a mask field."""
        return self.short == "mask"

    @property
    def mask_row(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        return (self.frames,), np.dtype(np.bool_)

    def _decode(
        self, data: bytes | memoryview, rng: np.random.Generator | None, out: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        reader = BytesReader(data)
        index = index_media(reader, limits=self.limits)
        track = index.first("video")
        rule = ClipRule(self.frames, self.stride, self.fps, self.short)
        num_starts = rule.num_starts(track)
        if not isinstance(self.start, str):
            start = self.start
        elif self.start == "random" and num_starts:
            start = self._draw(rng, num_starts)
        else:
            start = max(0, num_starts - 1) // 2 if self.start == "center" else 0
        numbers = rule.numbers(track, start)
        clip = decode_frames(
            reader,
            index,
            numbers,
            form=form_of(index, **{name: getattr(self, name) for name in ("size", *CHOICES)}),
            out=out,
            backend=self.backend,
            limits=self.limits,
        )
        return clip, numbers >= 0


@suggest_names
def video(
    frames: int = 16,
    *,
    stride: int = 1,
    fps: float | Fraction | None = None,
    start: Literal["center", "first", "random"] | int = "center",
    short: Literal["error", "mask", "repeat"] = "error",
    size: int | tuple[int, int] | None = None,
    fit: Literal["stretch", "crop"] = "stretch",
    layout: Literal["TCHW", "THWC", "CTHW"] = "TCHW",
    backend: str = "auto",
    max_pixels: int = DEFAULT_LIMITS.max_pixels,
    max_frames: int = DEFAULT_LIMITS.max_frames,
    mode: Literal["rgb", "gray"] = "rgb",
    dtype: Literal["uint8", "uint16", "float32"] = "uint8",
) -> Video:
    """Decode one clip of a video file: mp4, mov, mkv, webm, avi, ts, mpg.

    A clip has exactly the requested frames, or an error is raised: a damaged frame is never
    replaced by a neighbour. Codecs notice flipped bits: H.264 most, VP9 and HEVC without picture
    hashes few; shards with digests (`TarWriter(..., digests=True)`) find each one. Rotation is
    applied; pixels that are not square stay so; where a stream changes its resolution, pictures are
    resized to the header's.

    Args:
        frames: frames of the clip.
        stride: 1 takes each frame of the video, 4 each fourth one.
        fps: frames per second, instead of `stride`: frame i is the one on the screen i / fps
            seconds after the first, by integer arithmetic on the file's own times.
        start: where the clip starts: "first" at the first frame, "center" so that the clip lies in
            the middle, "random" at any frame that leaves room for a whole clip, by a generator
            keyed by (seed, epoch, sample); or a frame's number.
        short: for a video that is too short: "error", "mask" for frames of zeros after its end,
            "repeat" for its last frame again. With "mask" a dataset has a field "<field>.mask",
            too: bool `[frames]`, False for the frames of zeros.
        size: the exact size of the output, one number or (height, width); None keeps the video's.
        fit: "stretch" the whole picture to the size, or "crop" its centre and keep the aspect.
        layout: the order of frames T, channels C (red, green, blue), height H and width W.
        backend: "auto" is "pyav"; another name is an entry point of the group
            "shardwise.video_backends".
        max_pixels: the largest picture to decode, in height x width.
        max_frames: the most coded frames that a header may promise.
        mode: "gray" gives one channel, the brightness, such as a map of depth.
        dtype: "uint16" keeps more than 8 bits: stretched to 16, so that 12-bit gray is the value
            shifted right by 4; "float32" is the same from 0 to 1.

    Returns:
        A decoder of bytes to arrays `[frames, channels, height, width]`, or in another layout.

    Raises:
        DataError: (when called) the file is damaged, cut, too large or too short, or
            has no video.
        MissingExtraError: (when called) no package that decodes it is installed.

    Examples:
        >>> video(16, stride=4, size=224, fit="crop").row
        ((16, 3, 224, 224), dtype('uint8'))
    """
    if size is not None:
        height, width = (size, size) if isinstance(size, int | np.integer) else size
        size = (int(height), int(width))
    limits = Limits(max_pixels, max_frames)
    return Video(frames, stride, fps, start, short, size, fit, layout, backend, limits, mode, dtype)
