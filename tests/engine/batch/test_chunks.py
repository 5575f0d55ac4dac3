"""How a batch is cut into row chunks."""

from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.batch.chunks import chunk_ranges
from shardwise.sources.samples import LoadCost


def rows(light=None):
    return SimpleNamespace(cost=LoadCost(row_bytes=light))


@given(
    num_rows=st.integers(0, 5000),
    num_threads=st.integers(1, 64),
    light=st.one_of(st.none(), st.floats(0, 1e7)),
)
def test_chunks_are_all_rows_in_order_and_never_none(num_rows, num_threads, light):
    ranges = chunk_ranges(num_rows, num_threads, samples=rows(light))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))
    assert all(stop - start <= 4096 for start, stop in ranges)


def test_rows_that_cost_work_make_chunks_of_16_to_128():
    assert [stop - start for start, stop in chunk_ranges(64, 2, samples=rows())] == [32, 32]
    assert [stop - start for start, stop in chunk_ranges(64, 16, samples=rows())] == [16] * 4
    assert [stop - start for start, stop in chunk_ranges(512, 2, samples=rows())] == [128] * 4


def test_small_rows_that_are_only_read_make_chunks_of_four_megabytes():
    assert chunk_ranges(1024, 2, samples=rows(4096.0)) == [(0, 1024)]
    assert chunk_ranges(256, 2, samples=rows(100_000.0)) == chunk_ranges(256, 2, samples=rows())


def test_large_rows_make_chunks_of_64_mebibytes_so_that_threads_share_a_batch():
    for row_bytes, sizes in (
        (200 << 20, [1, 1]),
        (32 << 20, [2, 2, 1]),
        (4 << 20, [16, 16]),
        (3 << 20, [16, 16]),
    ):
        ranges = chunk_ranges(sum(sizes), 8, samples=rows(), row_bytes=row_bytes)
        assert [stop - start for start, stop in ranges] == sizes
    one_request = SimpleNamespace(cost=LoadCost(batch_is_one_request=True))
    assert chunk_ranges(4, 8, samples=one_request, row_bytes=200 << 20) == [(0, 4)]
