"""The forms of fields: their bytes become values as they are, by columns, or one by one.

MDS and LitData both have pictures that are stored as pixels, and lists of payloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, Layout
from shardwise.base.errors import message_of

# Pillow's mode -> dtype and channels.
_MODES = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3),
    "HSV": ("u1", 3), "LAB": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4),
    "I;16": ("<u2", 1), "I": ("<i4", 1), "F": ("<f4", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The form of a field's values.

    Attributes:
        layout: shape and dtype of a value whose bytes are those of an array; None for others.
        decode: bytes -> value for the others, or ValueError; None for fields that stay bytes.
        is_cut: the field is cut from a record as values already.
    """

    layout: Layout | None = None
    decode: Callable[[bytes], Any] | None = None
    is_cut: bool = False

    def __post_init__(self) -> None:
        if self.layout is not None:
            # Broadcasting takes no memory; numpy raises ValueError for a shape that it can't have.
            np.broadcast_to(np.empty((), self.layout[1]), self.layout[0])

    @property
    def is_value(self) -> bool:
        """Whether the field is a value, and not bytes."""
        return self.layout is not None or self.decode is not None or self.is_cut


STORED = Form()
VALUES = Form(is_cut=True)


def column_of(form: Form, stored: BytesColumn) -> Column:
    """The values of stored bytes; BadRowError for one that can't be decoded."""
    if form.layout is not None:
        return _array_of(form.layout, stored)
    if form.decode is None:
        return stored
    values = []
    for row, data in enumerate(stored.to_list()):
        assert data is not None
        try:
            values.append(form.decode(data))
        except RecursionError as error:
            raise BadRowError(row, f"{len(data)} bytes are nested too deeply") from error
        except Exception as error:
            raise BadRowError(row, message_of(error)) from error
    return values


class BadRowError(ValueError):
    """A row, by its number in the column, whose bytes are not a value of their field."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        self.field: str | None = None
        super().__init__(reason)


def _array_of(layout: Layout, stored: BytesColumn) -> NDArray[Any]:
    shape, dtype = layout
    length = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    wrong = np.flatnonzero(stored.lengths != length)
    if len(wrong):
        row = int(wrong[0])
        raise BadRowError(
            row, f"{stored.lengths[row]} bytes, and {dtype} of shape {shape} has {length}"
        )
    out = np.empty((len(stored), length), np.uint8)
    stored.copy_rows(out)
    return out.view(dtype).reshape(len(stored), *shape)


def little_endian(name: str) -> np.dtype[Any]:
    """The dtype of a number's name, as formats store it."""
    return np.dtype(name).newbyteorder("<")


def raw_picture(data: bytes) -> NDArray[Any]:
    """The pixels of a picture, `[height, width]` or `[height, width, channels]`."""
    if len(data) < 12:
        raise ValueError(f"{len(data)} bytes are no picture: its size alone has 12")
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii", "replace")
    if mode not in _MODES:
        raise ValueError(f"a picture of mode {mode!r}; read are {', '.join(_MODES)}")
    dtype, channels = _MODES[mode]
    pixels = data[12 + length :]
    expected = width * height * channels * np.dtype(dtype).itemsize
    if len(pixels) != expected:
        raise ValueError(f"{len(pixels)} bytes of pixels, {width} x {height} {mode} has {expected}")
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(pixels, dtype).reshape(shape).copy()


def cut_list(data: bytes, *, skip: int = 0) -> list[bytes]:
    """The parts of a list after `skip` bytes: their number and sizes (uint32), then the parts."""
    if len(data) < skip + 4:
        raise ValueError(f"{len(data)} bytes are no list")
    (count,) = np.frombuffer(data, "<u4", 1, skip).tolist()
    at = skip + 4 + 4 * count
    if len(data) < at:
        raise ValueError(f"{len(data)} bytes are no list of {count} parts")
    parts = []
    for size in np.frombuffer(data, "<u4", count, skip + 4).tolist():
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"a list of {at} bytes in {len(data)}")
    return parts
