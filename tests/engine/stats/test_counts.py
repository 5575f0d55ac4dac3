"""What a loader counts: time by stage and shard, and how many batches were ready."""

from __future__ import annotations

import json
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import DataLoader
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import Batch, BatchRequest, Concurrency
from shardwise.engine.stats.counts import Counts, ShardTimes
from shardwise.engine.threads import ThreadExecutor
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.waiting import wait_for

SIZES = [7, 0, 20, 13]


def works(num_batches, size=4):
    return iter(
        [BatchRequest(0, i, np.arange(i * size, (i + 1) * size) % 40) for i in range(num_batches)]
    )


def maker(**options):
    return BatchBuilder(Dataset(MemorySource(numbered_samples(40))).decode(cls=int), **options)


def loader(data=None, **options):
    data = data or Dataset(MemorySource(numbered_samples(40), SIZES)).decode(cls=int)
    return DataLoader(data, rank=0, world_size=1, output="numpy", batch_size=5, **options)


# Shards.


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_the_slow_shard_is_found_among_mixed_pieces(data):
    # Of fewer samples each shard would meet the slow one in every piece.
    sizes = data.draw(st.lists(st.integers(8, 40), min_size=2, max_size=12))
    slow = data.draw(st.integers(0, len(sizes) - 1))
    dataset = Dataset(MemorySource(numbered_samples(sum(sizes)), sizes))
    cost = np.repeat([1.0 + 50.0 * (i == slow) for i in range(len(sizes))], sizes)
    rng = np.random.default_rng(0)
    times = ShardTimes(dataset)
    for _ in range(20):
        for ids in np.array_split(rng.permutation(sum(sizes)), sum(sizes) // 3):
            times.add(ids, float(cost[ids].sum()))
    found = times.slowest(3)
    assert found[0]["url"] == dataset.manifest.shards[slow].url
    assert [f["seconds_a_sample"] for f in found] == sorted(
        (f["seconds_a_sample"] for f in found), reverse=True
    )


def test_the_times_of_pieces_of_one_shard_are_exact():
    times = ShardTimes(Dataset(MemorySource(numbered_samples(40), SIZES)))
    times.add(np.arange(7), 7.0)
    times.add(np.arange(7, 27), 5.0)
    times.add(np.arange(7, 27), 15.0)
    assert times.slowest(5) == [
        {"url": "memory://set/000.mem", "seconds_a_sample": 1.0},
        {"url": "memory://set/002.mem", "seconds_a_sample": 0.5},
    ]
    times.clear()
    assert times.slowest(5) == []


def test_one_shard_is_not_compared_with_itself():
    times = ShardTimes(Dataset(MemorySource(numbered_samples(40))))
    times.add(np.arange(7), 7.0)
    assert times.slowest(1) == []


def test_a_subsets_shards_are_those_that_its_samples_lie_in():
    times = ShardTimes(Dataset(MemorySource(numbered_samples(40), SIZES)).subset([3, 8, 39]))
    times.add(np.array([0, 1]), 2.0)
    times.add(np.array([2]), 9.0)
    assert times.slowest(1) == [{"url": "memory://set/003.mem", "seconds_a_sample": 9.0}]


class OneSlowShard(MemorySource):
    def read(self, ids, fields=None):
        time.sleep(0.03 * sum(1 for i in ids if 7 <= i < 27))
        return super().read(ids, fields)


@pytest.mark.parametrize("options", [{"num_threads": 2}, {"num_workers": 1, "collate": list}])
def test_a_loader_names_its_slow_shard(options):
    with loader(Dataset(OneSlowShard(numbered_samples(40), SIZES)), **options) as made:
        # Of the first epoch some shards were read in warm-ups alone.
        assert sum(len(list(made)) for _ in range(2)) == 16
        slowest = made.stats()["slowest_shards"]
    assert slowest[0]["url"] == "memory://set/002.mem"
    assert len(slowest) == 3


class SlowAtFirst(MemorySource):
    """Each thread's first read takes long, as where it imports a decoder."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.warm = threading.local()

    def read(self, ids, fields=None):
        time.sleep(0.0 if getattr(self.warm, "up", False) else 0.6)
        self.warm.up = True
        return super().read(ids, fields)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_warm_up_of_a_thread_is_no_shards_time(num_threads):
    source = SlowAtFirst(numbered_samples(40), SIZES)
    with loader(Dataset(source), num_threads=num_threads) as made:
        list(made)
        slowest = made.stats()["slowest_shards"]
    assert slowest
    assert max(shard["seconds_a_sample"] for shard in slowest) < 0.06


# Batches that are ready.


def test_a_caller_who_comes_late_finds_the_window_ready():
    executor = ThreadExecutor(maker(), num_threads=1, num_prefetch=4)
    batches = executor.run(works(9))
    ready = []
    for _ in range(9):
        ready.append(next(batches).num_ready)
        # One thread takes its tasks in turn: after this one all others are done.
        executor._pools[1].submit(int).result(60)
    executor.close()
    assert ready == [None, 3, 3, 3, 3, 3, 3, 2, 1]


def test_a_batch_that_is_awaited_was_not_ready():
    executor = ThreadExecutor(maker(), num_threads=1, num_prefetch=2)
    batches = executor.run(works(3, size=0))
    next(batches)
    executor._pools[1].submit(int).result(60)
    assert next(batches).num_ready == 1
    batches.close()
    executor.close()
    assert [batch.num_ready for batch in InlineExecutor(maker()).run(works(2))] == [0, 0]


def test_a_batch_is_finished_while_the_program_asks_for_none(tmp_path):
    go = tmp_path / "go"

    def gate(sample):
        while sample["cls"] >= 4 and not Path(go).exists():
            time.sleep(0.001)
        return sample

    data = Dataset(MemorySource(numbered_samples(40))).decode(cls=int).map(gate)
    executor = ProcessExecutor(BatchBuilder(data), num_workers=1, num_prefetch=2)
    try:
        batches = executor.run(works(2))
        first = next(batches)
        assert first.num_ready is None
        assert not first.is_next_ready()
        go.touch()
        wait_for(first.is_next_ready)
        assert next(batches).num_ready == 1
        batches.close()
    finally:
        executor.close()


@pytest.mark.parametrize("collate", [None, list])
def test_an_error_that_comes_before_its_turn_is_raised_in_its_turn(collate, tmp_path):
    seen = tmp_path / "seen"

    def fail_early(sample):
        if sample["cls"] == 4:
            seen.touch()
            raise ValueError("out of turn")
        while sample["cls"] == 0 and not Path(seen).exists():
            time.sleep(0.001)
        return sample

    data = Dataset(MemorySource(numbered_samples(40))).decode(cls=int).map(fail_early)
    executor = ProcessExecutor(
        BatchBuilder(data, collate=collate), num_workers=2, num_prefetch=4, timeout=60
    )
    try:
        batches = executor.run(works(4))
        assert next(batches).num_rows == 4
        with pytest.raises(DataError, match="out of turn"):
            next(batches)
    finally:
        executor.close()


def test_an_error_does_not_wait_for_the_pieces_behind_it(tmp_path):
    go = tmp_path / "go"

    def fail_or_stay(sample):
        if sample["cls"] == 0:
            raise ValueError("at once")
        while sample["cls"] == 20 and not Path(go).exists():
            time.sleep(0.001)
        return sample

    data = Dataset(MemorySource(numbered_samples(40))).decode(cls=int).map(fail_or_stay)
    executor = ProcessExecutor(BatchBuilder(data), num_workers=2, num_prefetch=2, timeout=60)
    try:
        with pytest.raises(DataError, match="at once"):
            next(executor.run(works(1, size=32)))
    finally:
        go.touch()
        executor.close()


# The sums.


def test_stats_have_every_stage_and_add_up():
    with loader(num_threads=2) as made:
        list(made)
        list(made)
        stats = made.stats()
    json.dumps(stats)
    assert {"open", "read", "decode", "collate", "hand over"} == set(stats["seconds"])
    assert (stats["samples"], stats["batches"]) == (80, 16)
    assert stats["wall_s"] >= stats["wait_s"] + stats["seconds"]["hand over"] > 0
    assert stats["rate"] == pytest.approx(80 / stats["wall_s"])
    # Rows that are merely read are made some batches at a time: the whole epoch may be ready.
    assert 0 <= stats["queue_depth"] <= 8
    assert (stats["executor"], stats["num_workers"], stats["num_threads"]) == ("threads", 0, 2)


def test_seconds_with_a_core_are_told_from_those_without():
    def sleepy(data):
        time.sleep(0.01)
        return 0

    data = Dataset(MemorySource(numbered_samples(40))).select("cls").decode(cls=sleepy)
    with loader(data, num_threads=2) as made:
        list(made)
        stats = made.stats()
    assert stats["seconds"]["decode"] >= 0.4
    assert 0 < stats["cpu_s"] < stats["seconds"]["decode"] / 2


def test_a_reset_begins_at_zero_in_the_midst_of_an_epoch():
    with loader(num_threads=0) as made:
        batches = iter(made)
        next(batches)
        assert made.stats(reset=True)["batches"] == 1
        assert made.stats()["batches"] == 0
        assert made.stats()["verdict"].startswith("too little")
        next(batches)
        stats = made.stats()
        assert (stats["batches"], stats["samples"]) == (1, 5)
        assert "open" not in stats["seconds"]


def sums(stats):
    return {name: stats[name] for name in ("batches", "samples")}


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 1}])
def test_stats_since_earlier_ones_count_what_came_after(options):
    with loader(**options) as made:
        batches = iter(made)
        first = json.loads(json.dumps(made.stats()))
        for _ in range(3):
            next(batches)
        second = made.stats(since=first)
        assert sums(second) == {"batches": 3, "samples": 15}
        assert set(second["wait_ms"]) == {"p50", "p95", "p99"}
        assert 0 < second["wait_ms"]["p50"] <= second["wait_ms"]["p99"]
        for _ in range(2):
            next(batches)
        # Also of stats that were themselves since others.
        assert sums(made.stats(since=second)) == {"batches": 2, "samples": 10}
        assert sums(made.stats(since=first)) == sums(made.stats(since={})) == sums(made.stats())
        assert made.stats(since=made.stats())["bound_by"] == "nothing"


def test_neither_a_reset_nor_since_takes_counts_from_another():
    with loader(num_threads=0) as made:
        batches = iter(made)
        next(batches)
        earlier = made.stats()
        next(batches)
        assert sums(made.stats(since=earlier, reset=True)) == {"batches": 1, "samples": 5}
        next(batches)
        later = made.stats(since=earlier)
        assert sums(later) == {"batches": 2, "samples": 10}
        assert sum(count for _, count in later["totals"]["wait_ms"]) == 3
        assert sums(made.stats()) == {"batches": 1, "samples": 5}
        assert sums(made.stats(since={})) == {"batches": 3, "samples": 15}
        assert "open" in made.stats(since={})["seconds"]
        assert "open" not in later["seconds"]


def test_stats_of_another_loader_are_refused():
    with loader(num_threads=0) as made, loader(num_threads=0) as other:
        list(made)
        with pytest.raises(ValueError, match="it has 8 batches, and the loader 0"):
            other.stats(since=made.stats())
        with pytest.raises(ValueError, match="no earlier stats"):
            made.stats(since={"batches": 3})
        with pytest.raises(TypeError, match=r"since=3.*give earlier stats"):
            made.stats(since=3)


def test_the_time_between_two_iterators_and_of_handing_out_the_first_batch_is_nobodys():
    counts = Counts(Dataset(MemorySource(numbered_samples(40))))
    counts.begin()
    counts.add(Batch({}, num_rows=3), asked_at=0.0, ready_at=1.0, returned_at=1.5)
    counts.add(Batch({}, num_rows=3), asked_at=5.0, ready_at=6.0, returned_at=6.5)
    counts.begin()
    counts.add(Batch({}, num_rows=3), asked_at=100.0, ready_at=101.0, returned_at=101.5)
    stats = counts.to_dict(Concurrency("inline"), num_cores=1)
    assert (stats["wait_s"], stats["wall_s"], stats["rate"]) == (3.0, 7.5, 9 / 7.5)
    assert stats["seconds"] == {"hand over": 1.0}


def test_a_pickled_loader_keeps_its_counts():
    with loader(num_threads=2) as made:
        list(made)
        copy = pickle.loads(pickle.dumps(made))
        assert copy.stats()["samples"] == 40
        list(copy)
        copy.close()
        assert copy.stats()["samples"] == 80
