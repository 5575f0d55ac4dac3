"""`tf.train.Example` from its bytes: a small reader of protobuf's wire format.

    Example {features = 1} Features {map feature = 1} entry {key = 1, value = 2}
    Feature {bytes_list = 1, float_list = 2, int64_list = 3}, each a list {value = 1}

Source: protobuf's encoding guide, and TensorFlow's example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "parse_example"]

# By the number of the list in a Feature.
KINDS = {1: "bytes", 2: "float32", 3: "int64"}

# A varint of 64 bits has ten bytes at most.
_MAX_SHIFT = 63

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]


def parse_example(data: bytes) -> dict[str, tuple[str, Values]]:
    """The features of an Example: name -> ("bytes", "float32" or "int64", its values).

    A feature without a list is left out.

    Raises:
        ValueError: the bytes are no Example.
    """
    features: dict[str, tuple[str, Values]] = {}
    for number, value in _messages(data):
        if number != 1:
            continue
        for entry_number, entry in _messages(value):
            if entry_number == 1:
                name, feature = _entry(entry)
                # As protobuf has it, the last entry of a key counts.
                found = _feature(feature)
                if found is not None:
                    features[name] = found
    return features


def _entry(data: bytes) -> tuple[str, bytes]:
    name, feature = "", b""
    for number, value in _messages(data):
        if number == 1:
            name = value.decode("utf-8")
        elif number == 2:
            feature = value
    return name, feature


def _feature(data: bytes) -> tuple[str, Values] | None:
    found: tuple[str, Values] | None = None
    for number, value in _messages(data):
        kind = KINDS.get(number)
        if kind == "bytes":
            found = kind, [each for at, each in _messages(value) if at == 1]
        elif kind == "float32":
            found = kind, _floats(value)
        elif kind == "int64":
            found = kind, _ints(value)
    return found


def _floats(data: bytes) -> NDArray[np.float32]:
    parts = [bytes(each) for number, _, each in _fields(data, fixed32=True) if number == 1]
    joined = b"".join(parts)
    if len(joined) % 4:
        raise ValueError(f"{len(joined)} bytes of floats")
    return np.frombuffer(joined, "<f4").astype(np.float32)


def _ints(data: bytes) -> NDArray[np.int64]:
    values: list[int] = []
    for number, wire, each in _fields(data):
        if number != 1:
            continue
        if wire == 0:
            values.append(each)
            continue
        at = 0
        while at < len(each):
            value, at = _varint(each, at)
            values.append(value)
    # Negative numbers are stored by their two's complement in 64 bits.
    return np.array(values, np.uint64).view(np.int64)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields with a length."""
    for number, wire, value in _fields(data):
        if wire == 2:
            yield number, value


def _fields(data: bytes, *, fixed32: bool = False) -> Iterator[tuple[int, int, Any]]:
    """The number, wire type and value of each field; fixed numbers where they are asked for."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"no Example: the wire type {wire} at byte {at}")
        if length > end - at:
            raise ValueError(f"no Example: {length} bytes at byte {at} of {end}")
        if wire == 2 or (wire == 5 and fixed32):
            yield number, wire, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_SHIFT:
            raise ValueError(f"no Example: no number at byte {at} of {len(data)}")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
