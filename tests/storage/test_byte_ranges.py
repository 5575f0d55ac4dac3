"""Requests for a set of ranges: every byte wanted is in one, and not much else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.storage.byte_ranges import ByteRange, byte_ranges, coalesce


def spans_in(draw_spans):
    begin, spans = 0, []
    for start, length in draw_spans:
        spans.append(ByteRange(start, start + length, begin))
        begin += length
    return spans


RANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 700)), max_size=20)


@given(RANGES, st.integers(0, 300), st.integers(1, 400))
def test_the_requests_bring_exactly_what_was_wanted(ranges, gap, part):
    spans = spans_in(ranges)
    file = bytes(i * 7 % 251 for i in range(6000))
    buffer = bytearray(sum(length for _, length in ranges))
    wanted = coalesce(spans, gap_bytes=gap, max_request_bytes=part)
    for start, stop, parts in wanted:
        assert 0 < stop - start <= part
        assert start == min(span.start for span in parts)
        assert stop == max(span.stop for span in parts)
        for span in parts:
            buffer[span.begin : span.begin + span.stop - span.start] = file[span.start : span.stop]
    assert bytes(buffer) == b"".join(file[start : start + length] for start, length in ranges)


@given(RANGES, st.integers(0, 300))
def test_no_more_is_read_in_vain_than_the_gap_allows(ranges, gap):
    spans = spans_in(ranges)
    for start, stop, parts in coalesce(spans, gap_bytes=gap, max_request_bytes=10**6):
        held = sorted((span.start, span.stop) for span in parts)
        at = start
        for first, last in held:
            assert first - at <= gap
            at = max(at, last)
        assert at == stop


def test_far_ranges_are_requests_of_their_own_and_long_ones_are_cut_evenly():
    apart = coalesce(
        [ByteRange(0, 10, 0), ByteRange(1000, 1010, 10)], gap_bytes=100, max_request_bytes=10**6
    )
    assert [(each.start, each.stop) for each in apart] == [(0, 10), (1000, 1010)]
    cut = coalesce([ByteRange(0, 1010, 0)], gap_bytes=0, max_request_bytes=500)
    assert [each.stop - each.start for each in cut] == [337, 337, 336]


def test_empty_spans_are_left_out_and_negative_ones_refused():
    assert byte_ranges([5, 9, 20], [0, 4, 4], 0) == [ByteRange(9, 13, 0)]
    with pytest.raises(ValueError, match="offset=-1"):
        byte_ranges([-1], [4], 0)
    with pytest.raises(ValueError, match="length=-2"):
        byte_ranges([0], [2], 4)
