"""How a batch is cut into pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.batch.prefetch import piece_ranges


@given(
    num_rows=st.integers(0, 5000),
    num_hands=st.integers(1, 64),
    light=st.one_of(st.none(), st.floats(0, 1e7)),
)
def test_pieces_are_all_rows_in_order_and_never_none(num_rows, num_hands, light):
    ranges = piece_ranges(num_rows, num_hands, light_row_bytes=light)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))
    assert all(stop - start <= 4096 for start, stop in ranges)


def test_rows_that_cost_work_make_pieces_of_16_to_64():
    assert [stop - start for start, stop in piece_ranges(64, 2)] == [32, 32]
    assert [stop - start for start, stop in piece_ranges(64, 16)] == [16] * 4
    assert [stop - start for start, stop in piece_ranges(256, 2)] == [64] * 4


def test_small_rows_that_are_only_read_make_pieces_of_four_megabytes():
    assert piece_ranges(1024, 2, light_row_bytes=4096.0) == [(0, 1024)]
    assert piece_ranges(256, 2, light_row_bytes=100_000.0) == piece_ranges(256, 2)
