"""Image files on their way to a decoder on a device: bytes, and which part of each to take.

Workers check headers and draw random crops; a device does the rest. A file that a device can't
decode is decoded here, and its pixels travel instead; with `decode_on="auto"`, so do those of
files that the cores have time for. Rows and draws are the same, whoever decodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.image_crop import CropBox
from shardwise.codecs.image_decoder import Image, ImagePart, RandomCropImage
from shardwise.codecs.image_headers import (
    ImageHeader,
    check_complete,
    find_orientation,
    jpeg_segments,
)

# The position of a file's bytes, whether they are pixels already, and the part of its image.
_ROW = np.dtype([
    *((name, np.int64) for name in ("start", "length")),
    *((name, np.bool_) for name in ("is_pixels", "is_mirrored")),
    *((name, np.int32) for name in ("frame_at", "height", "width")),
    *((name, np.int32) for name in ("top", "left", "box_height", "box_width")),
])  # fmt: skip
# Frame markers of what nvJPEG decodes: Huffman codes, baseline, extended and progressive.
_HUFFMAN = (0xC0, 0xC1, 0xC2)
_APP1, _APP14 = 0xE1, 0xEE
# A thread that idles for more than 10 % of its time takes files from the device, one that idles for
# less than 3 % leaves it more: 1/16 of the files each chunk, by an average over eight chunks.
_IDLE, _BUSY, _STEP, _DECAY = 0.10, 0.03, 1 / 16, 7 / 8


class PackedImages(Sequence["PackedImages"]):
    """Files of a column: uint8 `[total]`, and where each lies, `[rows]` of `_ROW`."""

    __slots__ = ("buffer", "rows")

    def __init__(self, buffer: NDArray[np.uint8] | None, rows: NDArray[Any]) -> None:
        self.buffer = buffer
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> PackedImages:
        return PackedImages(self.buffer, self.rows[row if isinstance(row, slice) else [row]])

    @property
    def nbytes(self) -> int:
        return int(self.rows["length"].sum())

    def payload(self) -> NDArray[np.uint8]:
        """The bytes of the first file, or of its pixels."""
        assert self.buffer is not None
        start, length, *_ = self.rows[0].item()
        return self.buffer[start : start + length]


def join_rows(column: Sequence[PackedImages]) -> NDArray[Any]:
    """The rows of all images of a column, of one dtype, which numpy need not look for in each."""
    return np.concatenate([np.empty(0, _ROW), *(each.rows for each in column)], dtype=_ROW)


class DeviceShare:
    """The share of files that a worker leaves to the device, by how much its threads idle.

    A thread idles between two chunks, while it waits for a read or for the trainer, which has
    enough. Cores that idle decode; the device gets what they have no time for. Where the device is
    the slower one, batches pile up before it, threads idle, and take files back.
    """

    def __init__(self) -> None:
        self.share = self._owed = 0.0
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return DeviceShare, ()

    def is_next_left(self) -> bool:
        """Whether the device gets the next file that it can decode."""
        self._owed += self.share
        is_left = self._owed >= 1
        self._owed -= is_left
        return is_left

    def begin(self) -> None:
        """Start a file; if it is a chunk's first, see how long the thread idled before."""
        local, now = self._local, time.perf_counter()
        if not hasattr(local, "began"):
            local.began, local.idle, local.ended = now, 0.0, None
        elif local.ended is not None:
            idle_s = now - local.ended[0] - (time.thread_time() - local.ended[1])
            self.follow(idle_s / (now - local.began))
            local.began, local.ended = now, None

    def follow(self, idle: float) -> None:
        """Change the share by the part of the time since the last chunk that was idle."""
        local = self._local
        local.idle = _DECAY * local.idle + (1 - _DECAY) * idle
        step = -_STEP if local.idle > _IDLE else _STEP if local.idle < _BUSY else 0.0
        self.share = min(1.0, max(0.0, self.share + step))

    def end(self) -> None:
        """End a chunk."""
        self._local.ended = time.perf_counter(), time.thread_time()


class PackingImage:
    """A decoder that leaves image files to a device: all, or with `decode_on="auto"` a share."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.stream = getattr(image, "stream", 0)  # of its random numbers
        self.share = DeviceShare() if image.decode_on == "auto" else None

    def __repr__(self) -> str:
        return repr(self.image)

    def __call__(self, data: bytes, rng: np.random.Generator) -> tuple[Any, tuple[int, ...]]:
        """The data to send for one file, and the fields of its row after `length`."""
        if self.share is not None:
            self.share.begin()
        image, view = self.image, memoryview(data)
        part = image.draw(view, rng) if isinstance(image, RandomCropImage) else image.draw(view)
        fits = _fits_device(view, part.header)
        if fits and (self.share is None or self.share.is_next_left()):
            header, box = part.header, part.box
            facts = (False, box.is_mirrored, header.frame_at, header.height, header.width)
            return data, (*facts, box.top, box.left, box.height, box.width)
        assert image.row is not None
        out: NDArray[Any] = np.empty(*image.row)
        image.decode_drawn_into(view, out, part)
        return out.reshape(-1).view(np.uint8), (True, *[0] * 8)

    def pack_column(self, values: Sequence[tuple[Any, tuple[int, ...]]]) -> PackedImages:
        """Copy what the calls returned into one buffer."""
        rows = np.empty(len(values), _ROW)
        buffer = np.empty(sum(len(data) for data, _ in values), np.uint8)
        at = 0
        for row, (data, facts) in enumerate(values):
            rows[row] = (at, len(data), *facts)
            buffer[at : at + len(data)] = np.frombuffer(data, np.uint8)
            at += len(data)
        if self.share is not None:
            self.share.end()
        return PackedImages(buffer, rows)


def decode_packed_into(image: Image, packed: PackedImages, out: NDArray[Any]) -> None:
    """Decode one packed file on the CPU after all, into a row."""
    row = dict(zip(_ROW.names or (), packed.rows[0].tolist(), strict=True))
    box = CropBox(row["top"], row["left"], row["box_height"], row["box_width"], row["is_mirrored"])
    header = ImageHeader("jpeg", row["height"], row["width"], row["frame_at"])
    image.decode_drawn_into(packed.payload().data, out, ImagePart(header, 1, box))


def _fits_device(data: memoryview, header: ImageHeader) -> bool:
    """Whether a device decodes a file as the CPU does: Huffman codes, gray or YCbCr, not cut.

    Nor is it turned: torchcodec applies an EXIF orientation, also where `orient` is False.
    """
    at = header.frame_at
    try:
        check_complete(data, header)
        components = data[at + 5]
        is_rgb = bytes(data[at + 6 : at + 6 + 3 * components : 3]) == b"RGB"
        if is_rgb or data[at - 3] not in _HUFFMAN or data[at] != 8 or components not in (1, 3):
            return False
        for marker, start in jpeg_segments(data):
            if marker == _APP14 and bytes(data[start : start + 5]) == b"Adobe":
                is_rgb = not data[start + 11]
            if is_rgb or (marker == _APP1 and find_orientation(data, header.format)[0] != 1):
                return False
    except (IndexError, ValueError):
        return False  # the CPU's decoder raises the error, if any
    return header.format == "jpeg"
