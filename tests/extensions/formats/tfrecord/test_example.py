"""`tf.train.Example` from its bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.extensions.formats.tfrecord.example import parse_example


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: dict[str, bytes]) -> bytes:
    entries = [
        message(1, message(1, name.encode()) + message(2, feature))
        for name, feature in features.items()
    ]
    return message(1, b"".join(entries))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5),
    st.lists(st.binary(max_size=300), max_size=4),
    st.booleans(),
)
def test_features_of_all_kinds_packed_and_not(ints, floats, texts, is_packed):
    if is_packed:
        int_list = message(1, b"".join(map(varint, ints)))
        float_list = message(1, struct.pack(f"<{len(floats)}f", *floats))
    else:
        int_list = b"".join(varint(1 << 3) + varint(each) for each in ints)
        float_list = b"".join(varint(1 << 3 | 5) + struct.pack("<f", each) for each in floats)
    data = example({
        "i": message(3, int_list),
        "f": message(2, float_list),
        "é": message(1, b"".join(message(1, each) for each in texts)),
        "none": b"",
    })  # fmt: skip
    found = parse_example(data)
    assert set(found) == {"i", "f", "é"}
    assert (found["i"][0], found["i"][1].tolist()) == ("int64", ints)
    assert (found["f"][0], found["f"][1].tolist()) == ("float32", floats)
    assert found["é"] == ("bytes", texts)


def test_fields_of_later_versions_are_stepped_over():
    unknown = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + bytes(8) + message(11, b"xyz")
    data = unknown + example({"i": unknown + message(3, message(1, varint(7)))}) + unknown
    assert parse_example(data)["i"][1].tolist() == [7]


def test_the_last_entry_of_a_name_counts():
    data = example({"a": message(1, message(1, b"x"))}) + example(
        {"a": message(1, message(1, b"y"))}
    )
    assert parse_example(data) == {"a": ("bytes", [b"y"])}


@given(st.binary(max_size=80))
def test_any_bytes_give_features_or_a_value_error(data):
    try:
        found = parse_example(data)
    except ValueError:
        return
    assert all(kind in ("bytes", "float32", "int64") for kind, _ in found.values())


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_cut_example_is_refused(cut):
    data = example({"i": message(3, message(1, varint(7))), "b": message(1, message(1, b"x" * 9))})
    with pytest.raises(ValueError, match="no Example"):
        parse_example(data[:-cut])


def test_numbers_are_arrays():
    found = parse_example(example({"i": message(3, message(1, varint(-1)))}))
    assert found["i"][1].dtype == np.int64


def test_a_number_where_floats_belong_is_no_length_of_zeros():
    floats = varint(1 << 3) + varint(2**60) + varint(1 << 3 | 5) + struct.pack("<f", 1.5)
    assert parse_example(example({"f": message(2, floats)}))["f"][1].tolist() == [1.5]
