"""CRC-32C of many byte strings, by both ways, against known values and a bit at a time."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.extensions.formats.tfrecord import crc32c as module_of_ours
from shardwise.extensions.formats.tfrecord.crc32c import crc32c, crc32c_by_numpy, masked_crc32c

# The first is google-crc32c or crc32c where one is installed.
BOTH_WAYS = pytest.mark.parametrize("way", [crc32c, crc32c_by_numpy])


def plain(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def of(way: Callable[..., Any], strings: list[bytes]) -> list[int]:
    lengths = np.array([len(each) for each in strings], np.int64)
    buffer = np.frombuffer(b"".join(strings), np.uint8)
    return way(buffer, np.cumsum(lengths) - lengths, lengths).tolist()


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
@BOTH_WAYS
def test_known_values(way, data, value):
    assert of(way, [data]) == [value]


@BOTH_WAYS
@settings(max_examples=40)
@given(strings=st.lists(st.binary(max_size=700), max_size=6))
def test_any_strings_together_are_each_by_itself(way, strings):
    assert of(way, strings) == [plain(each) for each in strings]


@BOTH_WAYS
def test_long_strings_are_joined_of_blocks(way):
    data = np.random.default_rng(0).bytes(70_001)
    assert of(way, [data, b"a", data[:4096]]) == [plain(data), plain(b"a"), plain(data[:4096])]


@pytest.mark.parametrize(
    "google", [None, SimpleNamespace(implementation="python", value=lambda data: 1)]
)
def test_the_package_crc32c_is_used_where_google_has_no_extension(google, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", google)
    module = SimpleNamespace(crc32c=lambda data: plain(bytes(data)) ^ 1)
    monkeypatch.setitem(sys.modules, "crc32c", module)
    monkeypatch.setattr(module_of_ours, "_compiled", module_of_ours._compiled.__wrapped__)
    assert of(crc32c, [b"123456789"]) == [0xE3069283 ^ 1]


@BOTH_WAYS
def test_no_strings_have_no_values(way):
    assert of(way, []) == []


def test_the_mask_of_record_files():
    data = np.frombuffer((5).to_bytes(8, "little"), np.uint8)
    crc = plain(data.tobytes())
    value = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc32c(data, np.zeros(1, np.int64), np.full(1, 8)).tolist() == [value]


def test_joining_many_blocks_takes_little_memory():
    words = np.arange(1 << 18, dtype=np.uint32)
    tracemalloc.start()
    try:
        module_of_ours._apply(module_of_ours._zeros(64), words)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * words.nbytes
