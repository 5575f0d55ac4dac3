"""Blocks of rows that are kept: always the rows asked for, within the bound, read once."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.extensions.tables.lance.row_blocks import BlockCache
from shardwise.plan import WindowSampler
from tests.support.properties import examples

NAMES = ("x", "s")


class Table:
    """Rows (i, str(i) padded to `width`); counts what is read, and has damaged rows."""

    def __init__(self, num_rows, *, width=100, damaged=()):
        self.num_rows = num_rows
        self.width = width
        self.damaged = set(damaged)
        self.reads = []
        self.before_take = lambda: None

    def take(self, ids, names):
        before_take, self.before_take = self.before_take, lambda: None
        before_take()
        assert names == NAMES
        assert len(ids)
        assert (np.diff(ids) > 0).all()
        assert 0 <= ids[0] <= ids[-1] < self.num_rows
        self.reads.append(len(ids))
        if self.damaged.intersection(ids.tolist()):
            raise DataError("a row is damaged")
        return pa.record_batch({"x": ids, "s": [str(i).rjust(self.width) for i in ids]})

    def cache(self, max_bytes):
        return BlockCache(self.take, num_rows=self.num_rows, max_bytes=max_bytes)


def check(cache, ids):
    ids = np.asarray(ids, dtype=np.int64)
    rows = cache.read(ids, NAMES).columns(ids, NAMES, "a table")
    assert list(rows["x"]) == ids.tolist()
    assert [int(s) for s in rows["s"]] == ids.tolist()


@settings(max_examples=examples(60))
@given(st.data())
def test_the_rows_are_those_asked_for_in_their_order(data):
    num_rows = data.draw(st.sampled_from([1, 5, 511, 513, 3000]))
    max_bytes = data.draw(st.sampled_from([0, 15_000_000, 100_000_000]))
    cache = Table(num_rows).cache(max_bytes)
    rows = st.integers(0, num_rows - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            start = data.draw(rows)
            ids = list(range(start, min(num_rows, start + data.draw(st.integers(1, 700)))))
        else:
            ids = data.draw(st.lists(rows, min_size=1, max_size=40))
        check(cache, ids)
        assert cache.num_bytes <= max_bytes


def test_a_window_shuffle_reads_each_row_about_once():
    table = Table(40_000)
    cache = table.cache(16 << 20)
    sampler = WindowSampler([40_000], lanes=8, window=1024)
    order = sampler.indices(0, np.arange(40_000))
    for start in range(0, 40_000, 100):
        check(cache, order[start : start + 100].tolist())
    assert sum(table.reads) < 1.1 * 40_000
    assert len(table.reads) < 300
    # What was used up is gone, but for the block that the first read went before.
    assert cache.num_bytes < 3 << 19


def test_a_full_shuffle_of_a_large_table_soon_reads_rows_by_themselves():
    table = Table(2_000_000)
    cache = table.cache(16 << 20)
    rng = np.random.default_rng(0)
    for _ in range(30):
        check(cache, rng.integers(0, 2_000_000, 64).tolist())
    table.reads.clear()
    for _ in range(100):
        check(cache, rng.integers(0, 2_000_000, 64).tolist())
    assert sum(table.reads) < 2 * 64 * 100


def test_blocks_come_back_after_a_time_without_use():
    table = Table(400_000)
    cache = table.cache(16 << 20)
    rng = np.random.default_rng(0)
    for _ in range(40):
        check(cache, rng.integers(0, 400_000, 64).tolist())
    for start in range(0, 200_000, 64):
        check(cache, range(start, start + 64))
    table.reads.clear()
    for start in range(0, 100_000, 64):
        check(cache, range(start, start + 64))
    assert len(table.reads) < 500


def test_wide_rows_are_never_read_in_blocks():
    table = Table(5000, width=100_000)
    cache = table.cache(64 << 20)
    for start in range(0, 60, 3):
        check(cache, [start, start + 2])
    assert max(table.reads) == 2
    assert cache.num_bytes == 0


def test_a_damaged_row_does_not_harm_its_neighbours():
    table = Table(2000, damaged=[700])
    cache = table.cache(64 << 20)
    check(cache, [3])
    check(cache, [699, 5, 701, 1999])
    with pytest.raises(DataError):
        cache.read(np.array([5, 700]), NAMES)
    check(cache, [702, 703])
    # A block that has failed once is not read again.
    assert table.reads[-1] == 2


def test_threads_get_the_same_rows():
    table = Table(200_000)
    cache = table.cache(15 << 20)
    rng = np.random.default_rng(0)
    tasks = [rng.integers(0, 200_000, 50).tolist() for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda ids: check(cache, ids), tasks))
    assert 0 <= cache.num_bytes <= 15 << 20


def test_threads_that_want_a_block_at_the_same_time_have_it_read_once():
    table = Table(10_000)
    everybody = Barrier(4)
    cache = table.cache(64 << 20)
    check(cache, [0])

    def read(first):
        everybody.wait(60)
        check(cache, range(first, 10_000, 4))

    for _ in range(20):
        table.reads.clear()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(4)))
        # All rows were asked for, so the blocks are gone again.
        assert sum(table.reads) <= 10_000


def test_who_waits_for_a_block_that_is_damaged_gets_rows_all_the_same():
    table = Table(2000, damaged=[700])
    everybody = Barrier(4)
    for _ in range(20):
        cache = table.cache(64 << 20)
        check(cache, [0])

        def read(first, cache=cache):
            everybody.wait(60)
            check(cache, [first, first + 4, 900 + first])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(600, 604)))


def test_threads_that_read_first_agree_on_the_size_of_blocks():
    table = Table(10_000, width=20)
    cache = table.cache(64 << 20)

    def other_reads_first():
        table.width = 100  # wider rows: smaller blocks
        check(cache, [0])
        check(cache, range(0, 10_000, 100))
        table.width = 20

    table.before_take = other_reads_first
    check(cache, [5])
    check(cache, range(0, 10_000, 100))


def test_a_block_that_was_used_up_is_fetched_anew_by_another_thread():
    table = Table(200_000)
    cache = table.cache(64 << 20)
    check(cache, [0])
    is_under_way, is_over = Event(), Event()

    def other_waits():
        is_under_way.set()
        assert is_over.wait(60)

    def other_begins():  # after the first of two reads, whose blocks are used up
        table.before_take = other_waits
        others.append(pool.submit(check, cache, [3]))
        assert is_under_way.wait(60)

    def after_one_read():
        table.before_take = other_begins

    others = []
    with ThreadPoolExecutor(1) as pool:
        table.before_take = after_one_read
        try:
            check(cache, range(40_000))
        finally:
            is_over.set()
        others[0].result(60)
