"""CRC-32C of many byte strings, against known values and a bit at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.extensions.formats.tfrecord.scan import masked_crc32c
from tests.support.properties import examples
from tests.support.python_code import printed_by


def plain(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def of(strings: list[bytes]) -> list[int]:
    lengths = np.array([len(each) for each in strings], np.int64)
    buffer = np.frombuffer(b"".join(strings), np.uint8)
    return masked_crc32c(buffer, np.cumsum(lengths) - lengths, lengths).tolist()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_values(data: bytes, value: int) -> None:
    assert of([data]) == [masked(value)]


@settings(max_examples=examples(40))
@given(strings=st.lists(st.binary(max_size=700), max_size=6))
def test_any_strings_together_are_each_by_itself(strings: list[bytes]) -> None:
    assert of(strings) == [masked(plain(each)) for each in strings]


@pytest.mark.parametrize("package", ["google.protobuf", "google_crc32c"])
def test_without_its_packages_the_error_has_the_line_to_install_them(package: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
import shardwise as sw
try:
    sw.tfrecord("a.tfrecord")
except sw.ShardwiseError as error:
    print(error)
"""
    printed = printed_by(program)
    assert package in printed
    assert "pip install 'shardwise[tfrecord]'" in printed
