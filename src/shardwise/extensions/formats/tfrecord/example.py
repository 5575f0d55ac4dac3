"""`tf.train.Example` and `SequenceExample` from bytes: a small reader of protobuf's wire format.

    Example {features = 1} Features {map feature = 1} entry {key = 1, value = 2}
    Feature {bytes_list = 1, float_list = 2, int64_list = 3}, each a list {value = 1}
    SequenceExample {context = 1: Features, feature_lists = 2: FeatureLists}
    FeatureLists {map feature_list = 1} entry {key = 1, value = 2} FeatureList {feature = 1}

An Example is a SequenceExample without feature lists: the bytes are the same.

Nested messages are read in place, by their bounds, so that only values are copied.

Source: protobuf's encoding guide, and TensorFlow's example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# By the number of the list in a Feature.
KINDS = {1: "bytes", 2: "float32", 3: "int64"}

# A varint of 64 bits has ten bytes at most.
_MAX_SHIFT = 63

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]


class Steps(list[Values]):
    """The values of each step of a feature list."""


def parse_example(data: bytes) -> dict[str, tuple[str, Values | Steps]]:
    """Parse the features and feature lists: name -> (kind, its values or steps).

    The kind is "bytes", "float32" or "int64", and "" for steps that have no values. A feature
    without a list is left out.

    Raises:
        ValueError: the bytes are not an Example, or a feature and a feature list share a name.
    """
    found: dict[str, tuple[str, Values | Steps]] = {}
    for number, wire, begin, end in _fields(data, 0, len(data)):
        if number not in (1, 2) or wire != 2:
            continue
        for entry_number, entry_wire, start, stop in _fields(data, begin, end):
            if entry_number != 1 or entry_wire != 2:
                continue
            name, at, until = _entry(data, start, stop)
            each = _feature(data, at, until) if number == 1 else _steps(data, name, at, until)
            if each is None:
                continue
            if isinstance(found.get(name, each)[1], Steps) != isinstance(each[1], Steps):
                raise ValueError(
                    f"{name!r} is both a feature of the context and a feature list: take the "
                    "records, features=()"
                )
            # As protobuf has it, the last entry of a key counts.
            found[name] = each
    return found


def _entry(data: bytes, at: int, end: int) -> tuple[str, int, int]:
    name, start, stop = "", 0, 0
    for number, wire, begin, until in _fields(data, at, end):
        if wire == 2 and number == 1:
            name = data[begin:until].decode("utf-8")
        elif wire == 2 and number == 2:
            start, stop = begin, until
    return name, start, stop


def _steps(data: bytes, name: str, at: int, end: int) -> tuple[str, Steps]:
    each = [
        _feature(data, start, stop)
        for number, wire, start, stop in _fields(data, at, end)
        if number == 1 and wire == 2
    ]
    kinds = sorted({step[0] for step in each if step is not None and len(step[1])})
    if len(kinds) > 1:
        raise ValueError(f"the steps of the feature list {name!r} are {' and '.join(kinds)}")
    kind = kinds[0] if kinds else ""
    empty: Values = np.empty(0, kind) if kind in ("float32", "int64") else []
    return kind, Steps([empty if step is None or not len(step[1]) else step[1] for step in each])


def _feature(data: bytes, at: int, end: int) -> tuple[str, Values] | None:
    found: tuple[str, Values] | None = None
    for number, wire, start, stop in _fields(data, at, end):
        if wire != 2:
            continue
        if number == 1:
            values = _fields(data, start, stop)
            found = "bytes", [data[a:b] for each, form, a, b in values if each == 1 and form == 2]
        elif number == 2:
            found = "float32", _floats(data, start, stop)
        elif number == 3:
            found = "int64", _ints(data, start, stop)
    return found


def _floats(data: bytes, at: int, end: int) -> NDArray[np.float32]:
    values = _fields(data, at, end)
    joined = b"".join([data[a:b] for each, form, a, b in values if each == 1 and form in (2, 5)])
    if len(joined) % 4:
        raise ValueError(f"{len(joined)} bytes of floats")
    return np.frombuffer(joined, "<f4").astype(np.float32)


def _ints(data: bytes, at: int, end: int) -> NDArray[np.int64]:
    values: list[int] = []
    for number, wire, start, stop in _fields(data, at, end):
        # One alone, or a list of them.
        while number == 1 and wire in (0, 2) and start < stop:
            value, start = _varint(data, start, stop)
            values.append(value)
    # Negative numbers are stored by their two's complement in 64 bits.
    return np.array(values, np.uint64).view(np.int64)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The number and wire type of each field of a message, and where its value lies."""
    while at < end:
        tag = data[at]
        # Numbers below 128 have one byte: a call for each took a third of the time.
        tag, start = (tag, at + 1) if tag < 128 else _varint(data, at, end)
        wire, at = tag & 7, start
        if wire == 2:
            short = start < end and data[start] < 128
            length, start = (data[start], start + 1) if short else _varint(data, start, end)
            at = start + length
        elif wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 5:
            at += 4
        elif wire == 1:
            at += 8
        else:
            raise ValueError(f"no Example: the wire type {wire} at byte {at}")
        if at > end:
            raise ValueError(f"no Example: {at - start} bytes at byte {start} of {end}")
        yield tag >> 3, wire, start, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > _MAX_SHIFT:
            raise ValueError(f"no Example: no number at byte {at} of {end}")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
