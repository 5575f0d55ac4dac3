"""Payloads out of pieces: the bytes that a buffer would have, wherever the pieces end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardwise.storage.byte_ranges import ReceivedBytes, copy_received, payloads_of


@st.composite
def cut_up(draw):
    """A buffer, the pieces that fill it in some order, and parts of it."""
    data = draw(st.binary(max_size=60))
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=8))})
    pieces = [ReceivedBytes(a, memoryview(data)[a:b]) for a, b in pairwise(cuts) if a < b]
    parts = []
    for _ in range(draw(st.integers(0, 10))):
        start = draw(st.integers(0, len(data)))
        parts.append((start, draw(st.integers(-1, len(data) - start))))
    return data, draw(st.permutations(pieces)), parts


@given(cut_up())
def test_payloads_are_what_the_buffer_would_have(case):
    data, pieces, parts = case
    buffer = bytearray(len(data))
    copy_received(pieces, memoryview(buffer))
    assert bytes(buffer) == data
    found = payloads_of(pieces, [start for start, _ in parts], [length for _, length in parts])
    assert found == [
        None if length < 0 else data[start : start + length] for start, length in parts
    ]
