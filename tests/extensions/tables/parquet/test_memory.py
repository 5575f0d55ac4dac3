"""Row groups in memory: decoded once, bounded, shared by threads; opening costs footers only."""

import pickle
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.tables.parquet import tables
from shardwise.extensions.tables.parquet.fields import ColumnOptions
from shardwise.extensions.tables.parquet.parquet_file import ParquetFile
from shardwise.extensions.tables.parquet.source import ParquetSource
from shardwise.extensions.tables.row_group_cache import RowGroupCache
from shardwise.plan import Plan
from shardwise.storage import FilePool, StorageOptions, open_file
from tests.support.forks import in_child
from tests.support.tables import write_groups


@pytest.fixture
def decoded(monkeypatch):
    """Which row groups were decoded, in order."""
    groups = []
    read = ParquetFile.read

    def counted(self, group, names):
        groups.append(group)
        return read(self, group, names)

    monkeypatch.setattr(ParquetFile, "read", counted)
    return groups


@pytest.fixture
def small_windows(monkeypatch):
    """Windows as of a table far larger than memory."""
    monkeypatch.setattr(tables, "_WINDOW_BYTES", 128_000)


@pytest.mark.parametrize(("world_size", "num_threads"), [(1, 0), (1, 3), (4, 2)])
def test_a_window_shuffle_decodes_each_row_group_once(
    tmp_path, small_windows, decoded, world_size, num_threads
):
    path = write_groups(tmp_path / "a.parquet", [200] * 40)
    source = ParquetSource(path)
    lanes, window = source.traits.window_shape
    assert (lanes, window) == (4, 200)
    # Two row groups a lane, and what is read ahead; not nearly the 40 that there are. A row group
    # takes some 22 kB.
    budget = 4 * lanes * 22_000
    for rank in range(world_size):
        decoded.clear()
        # A transform, so that batches are not read many at a time.
        loader = sw.DataLoader(
            sw.parquet(path, memory_bytes=budget).map(dict),
            batch_size=16,
            shuffle=True,
            rank=rank,
            world_size=world_size,
            num_threads=num_threads,
            remainder="uneven",
        )
        with loader:
            ids = [i for batch in loader for i in batch["id"].tolist()]
        assert len(set(ids)) == 8000 // world_size
        # The ends of the lanes' sections lie in row groups that other lanes have, too.
        assert len(decoded) <= 40 // world_size + 2 * lanes
        assert set(decoded) >= set(np.unique(np.array(ids) // 200).tolist())


def test_the_order_is_the_same_with_any_memory(tmp_path, small_windows):
    path = write_groups(tmp_path / "a.parquet", [200] * 40)
    orders = []
    for memory_bytes in (0, 1 << 30):
        ds = sw.parquet(path, memory_bytes=memory_bytes, columns=["id"])
        with sw.DataLoader(ds, batch_size=64, shuffle=True, rank=0, world_size=1) as loader:
            orders.append([batch["id"].tolist() for batch in loader])
    assert orders[0] == orders[1]


def test_threads_that_ask_for_the_same_get_what_one_of_them_makes():
    kept = RowGroupCache(100)
    begun, go_on = threading.Barrier(4, timeout=60), threading.Event()
    made = []

    def make():
        made.append(1)
        assert go_on.wait(60)
        return "value", 10

    def ask():
        begun.wait()
        return kept.get("key", make)

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(ask) for _ in range(3)]
        begun.wait()
        go_on.set()
        assert [future.result(60) for future in found] == ["value"] * 3
    assert len(made) == 1


def test_what_was_used_longest_ago_goes_first():
    kept = RowGroupCache(50)
    for key in range(5):
        kept.get(key, lambda key=key: (key, 10))
    kept.get(0, lambda: pytest.fail("it is kept"))
    kept.get(5, lambda: (5, 10))
    assert (len(kept), kept.num_bytes) == (5, 50)
    kept.get(0, lambda: pytest.fail("it is kept"))
    assert kept.get(1, lambda: ("again", 10)) == "again"


def test_four_are_kept_whatever_they_take():
    kept = RowGroupCache(0)
    for key in range(9):
        kept.get(key, lambda key=key: (key, 1 << 40))
    assert len(kept) == 4
    for key in range(5, 9):
        kept.get(key, lambda: pytest.fail("it is kept"))


def test_an_error_is_not_kept():
    kept = RowGroupCache(50)
    with pytest.raises(DataError, match="once"):
        kept.get("key", lambda: (_ for _ in ()).throw(DataError("once")))
    assert len(kept) == 0
    assert kept.get("key", lambda: (1, 1)) == 1


def test_a_child_forked_while_a_thread_decodes_does_not_wait_for_it(tmp_path):
    source = ParquetSource(write_groups(tmp_path / "a.parquet", [10]))
    source.read(np.arange(5))
    inside, go_on = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go_on.wait(60)
        return {}, 0

    thread = threading.Thread(target=source._groups.get, args=((0, ("id",)), slow))
    thread.start()
    assert inside.wait(60)
    column = in_child(lambda: source.read(np.arange(5), ("id",)).fields["id"])
    assert column.tolist() == list(range(5))
    go_on.set()
    thread.join(60)


def test_a_hundred_million_rows_open_and_plan_in_little_memory(tmp_path):
    path = tmp_path / "a.parquet"
    group = pa.table({"x": pa.array(np.zeros(1_000_000, np.int8))})
    with pq.ParquetWriter(path, group.schema) as writer:
        for _ in range(100):
            writer.write_table(group)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    ds = sw.parquet(path)
    assert len(ds) == 100_000_000
    assert len(ds.manifest.shards) == 100
    plan = Plan(
        len(ds),
        world_size=8,
        shuffle="window",
        shard_sizes=ds.shard_sizes,
        window_shape=ds.window_shape,
    )
    assert len(plan.indices(0, plan.num_steps - 1, 7)) == 64
    peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    assert peak < 50e6
    assert len(pickle.dumps(ds)) < 50_000
    assert ds[99_999_999]["x"] == 0


def test_footers_that_are_too_many_to_travel_are_not_held_together(tmp_path, monkeypatch):
    path = tmp_path / "one.parquet"
    write_groups(path, [10])
    info = ParquetFile(open_file(str(path), options=StorageOptions())).info()

    class Remote:
        def info(self):
            time.sleep(0.004)
            return replace(info, footer=bytes(1 << 20))

    monkeypatch.setattr(tables, "open_table", lambda *_: Remote())
    urls = [f"https://host/{number}.parquet" for number in range(400)]
    tracemalloc.start()
    opened = tables.open_tables(urls, FilePool(), ColumnOptions.of(None, None, None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not any(opened.footers)
    assert peak < 200 << 20
