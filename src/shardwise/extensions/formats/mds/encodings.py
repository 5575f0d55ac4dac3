"""The encodings of MDS columns: which are bytes, which are arrays, and how the others are decoded.

Source: MosaicML Streaming 0.13, the encodings of its format "mds", version 2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.formats.records.forms import (
    STORED,
    Form,
    cut_list,
    little_endian,
    raw_picture,
)

_NUMBERS = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
    "float64",
)  # fmt: skip
# "pkl" among them: nothing is ever unpickled here.
_STORED = ("bytes", "jpeg", "png", "pkl")
# The first byte of an array whose dtype is not the column's.
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


def form_of(encoding: str) -> Form:
    """The form of an encoding's columns."""
    name, _, options = encoding.partition(":")
    if name == "ndarray":
        return _array_form(options)
    if encoding in _STORED:
        return STORED
    if encoding == "int":
        return Form(layout=((), little_endian("int64")))
    if encoding in _NUMBERS:
        return Form(layout=((), little_endian(encoding)))
    decode = _DECODERS.get(encoding)
    if decode is None:
        raise ValueError(f"the encoding {encoding!r} is not known")
    return Form(decode=decode)


def _array_form(options: str) -> Form:
    dtype, _, shape_text = options.partition(":")
    if dtype and dtype not in _NUMBERS:
        raise ValueError(f"an array of {dtype!r}")
    shape = tuple(map(int, shape_text.split(","))) if shape_text else None
    if dtype and shape is not None:
        return Form(layout=(shape, little_endian(dtype)))
    return Form(decode=partial(_array, dtype, shape))


def _array(dtype: str, shape: tuple[int, ...] | None, data: bytes) -> NDArray[Any]:
    at = 0
    if not dtype:
        if data[0] not in _DTYPES:
            raise ValueError(f"an array of the dtype number {data[0]}")
        dtype, at = _DTYPES[data[0]], 1
    if shape is None:
        # The number of axes, and in the two lowest bits the width of their lengths.
        num_axes, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", num_axes, at + 1).tolist())
        at += 1 + num_axes * width
    return np.frombuffer(data[at:], little_endian(dtype)).reshape(shape).copy()


def _int(data: bytes) -> int:
    return int(data.decode("utf-8"))


def _float(data: bytes) -> float:
    return float(data.decode("utf-8"))


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError(f"{data[:40]!r} is no number") from None


def _pictures(data: bytes) -> list[NDArray[Any]]:
    return [raw_picture(each) for each in cut_list(data, skip=4)]


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": partial(str, encoding="utf-8"),
    "json": json.loads,
    "str_int": _int,
    "str_float": _float,
    "str_decimal": _decimal,
    "pil": raw_picture,
    "jpeg_array": cut_list,
    "jpegarray": cut_list,
    "list[jpeg]": partial(cut_list, skip=4),
    "list[png]": partial(cut_list, skip=4),
    "list[pil]": _pictures,
}
