"""LitData's serialisers by their names: which leaves are bytes, and how the others are decoded.

Source: LitData 0.2, its module of serialisers. Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.formats.litdata import nested
from shardwise.extensions.formats.records.forms import (
    STORED,
    Form,
    cut_list,
    little_endian,
    raw_picture,
)

# Encoded media, files, and what only a pickle or a package could read: bytes, for a decoder.
_STORED = (
    "bytes", "jpeg", "image", "file", "video", "audio", "pdf", "nifti", "mesh", "graph", "tifffile",
    "tiff", "pickle",
)  # fmt: skip
# Their numbers of dtypes. Torch's aliases have separate numbers; bfloat16 has no dtype here.
_TORCH = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128",
    "complex128", "float16", "float16", "", "uint8", "int8", "int16", "int16", "int32", "int32",
    "int64", "int64", "bool", "uint16",
)  # fmt: skip
_NUMPY = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "complex64", "complex128", "bool",
)  # fmt: skip


def form_of(serializer: str) -> Form:
    """The form of a serialiser's leaves."""
    name, _, option = serializer.partition(":")
    if name in _STORED:
        return STORED
    if name in _NUMBERS:
        return _NUMBERS[name]
    if name in ("no_header_tensor", "no_header_numpy"):
        table = _TORCH if name.endswith("tensor") else _NUMPY
        number = int(option) if option.isdecimal() else -1
        return Form(decode=partial(_flat, _dtype(table, number)))
    decode = _DECODERS.get(name)
    if decode is None:
        raise ValueError(f"the serialiser {serializer!r} is not known: is it your own?")
    return Form(decode=decode)


def _dtype(table: tuple[str, ...], number: int) -> np.dtype[Any]:
    if not 0 <= number < len(table) or not table[number]:
        raise ValueError(f"an array of the dtype number {number}, which numpy has not")
    return little_endian(table[number])


def _flat(dtype: np.dtype[Any], data: bytes) -> NDArray[Any]:
    return np.frombuffer(data, dtype).copy()


def _array(table: tuple[str, ...], order: str, data: bytes) -> NDArray[Any]:
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes are no array: its header alone has 8")
    number, num_axes = struct.unpack_from(f"{order}II", data)
    dtype, shape = _dtype(table, number), np.frombuffer(data, f"{order}u4", num_axes, 8).tolist()
    return np.frombuffer(data[8 + 4 * num_axes :], dtype).reshape(shape).copy()


_NUMBERS = {
    "int": Form(layout=((), little_endian("int64"))),
    "float": Form(layout=((), little_endian("float64"))),
    "bool": Form(layout=((), np.dtype(np.bool_))),
}
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": partial(str, encoding="utf-8"),
    "text": partial(str, encoding="utf-8"),
    "numpy": partial(_array, _NUMPY, "<"),
    # Other than everything else, its header is big-endian.
    "tensor": partial(_array, _TORCH, ">"),
    "pil": raw_picture,
    "jpeg_array": cut_list,
    "json": nested.loads,
}
