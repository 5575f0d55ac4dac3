"""Batches that are made several at a time: the same ones, in the same order, errors in place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.batch.schedule import coalesced_batches, num_coalesced
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import BatchRequest
from shardwise.engine.threads import ThreadExecutor
from shardwise.testing import assert_batches_equal
from tests.support.memory_source import MemorySource, numbered_samples


def light(source):
    return Dataset(source).decode(cls=int, bin=sw.array("int64", (1,)))


def works_of(sizes, *, padded=False):
    at, works = 0, []
    for step, size in enumerate(sizes):
        valid = np.arange(size) % 2 == 0 if padded else None
        works.append(BatchRequest(3, step, np.arange(at, at + size), valid))
        at += size
    return works


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(1, 6),
    threads=st.sampled_from([0, 1, 3]),
    padded=st.booleans(),
)
def test_batches_are_those_that_are_made_one_by_one(sizes, size, threads, padded):
    samples = numbered_samples(sum(sizes) + 1)
    for i, sample in enumerate(samples):
        sample["odd"] = bytes(i % 3)  # ragged: a list, or an array where the lengths agree
        if i % 5 == 0:
            del sample["txt"]
    maker = BatchBuilder(light(MemorySource(samples)).decode(odd=sw.array("uint8")))
    works = works_of(sizes, padded=padded)
    executor = (
        ThreadExecutor(maker, num_threads=threads, num_prefetch=3)
        if threads
        else InlineExecutor(maker)
    )
    made = list(coalesced_batches(executor, iter(works), size))
    executor.close()
    alone = [maker.build(work) for work in works]
    assert len(made) == len(alone)
    for batch, other in zip(made, alone, strict=True):
        assert_batches_equal(batch.data, other.data)
        assert batch.num_rows == other.num_rows
        assert not batch.parts
    assert sum(b.stages.num_bytes for b in made) == sum(b.stages.num_bytes for b in alone)


def test_worker_processes_make_the_same_batches_in_groups():
    maker = BatchBuilder(light(MemorySource(numbered_samples(200))))
    works = works_of([8] * 24 + [3])
    executor = ProcessExecutor(maker, num_workers=2, num_prefetch=4, timeout=120)
    made = list(coalesced_batches(executor, iter(works), 4))
    executor.close()
    for batch, work in zip(made, works, strict=True):
        assert_batches_equal(batch.data, maker.build(work).data)


def test_a_group_is_read_at_once_and_the_first_batch_by_itself():
    source = MemorySource(numbered_samples(100))
    executor = InlineExecutor(BatchBuilder(light(source)))
    made = list(coalesced_batches(executor, iter(works_of([10] * 10)), 4))
    assert len(made) == 10
    assert [len(ids) for ids, _ in source.reads] == [10, 20, 40, 30]


@pytest.mark.parametrize("damaged", [0, 15, 35, 69, 99])
def test_an_error_comes_in_the_place_of_its_batch_and_the_batches_before_it_are_given(damaged):
    source = MemorySource(numbered_samples(100))
    source.fail_at(damaged)
    executor = ThreadExecutor(BatchBuilder(light(source)), num_threads=2, num_prefetch=3)
    given = []
    with pytest.raises(DataError) as caught:
        for batch in coalesced_batches(executor, iter(works_of([10] * 10)), 4):
            given.append(batch.data["__index__"][0])
    executor.close()
    assert caught.value.key == f"key-{damaged:05d}"
    assert given == list(range(0, damaged // 10 * 10, 10))


def test_an_error_that_passes_loses_no_batch():
    source = MemorySource(numbered_samples(100))
    source.fail_at(35)
    executor = InlineExecutor(BatchBuilder(light(source)))
    given = []
    for batch in coalesced_batches(executor, iter(works_of([10] * 10)), 4):
        given += batch.data["__index__"].tolist()
        if given[-1] == 29:
            # The group of rows 30 to 69 failed, or will: what was wrong is put right.
            source.failures.clear()
    assert given == list(range(100))


def test_only_samples_that_are_merely_read_are_made_in_groups():
    samples = MemorySource(numbered_samples(1000))
    ds = light(samples).select("cls", "bin")
    assert num_coalesced(ds, 16) == 256
    assert num_coalesced(ds, 5000) == 1
    assert num_coalesced(ds.map(lambda sample: sample), 16) == 1
    assert num_coalesced(Dataset(samples).decode(bin=lambda data: data), 16) == 1


def test_a_loader_resumes_in_the_middle_of_a_group():
    ds = light(MemorySource(numbered_samples(500)))
    loader = sw.DataLoader(ds, batch_size=8, shuffle=True, rank=0, world_size=1, output="numpy")
    whole = [batch["__index__"].tolist() for batch in loader]
    for steps in (1, 5, 13):
        first = sw.DataLoader(ds, batch_size=8, shuffle=True, rank=0, world_size=1, output="numpy")
        batches = iter(first)
        begun = [next(batches)["__index__"].tolist() for _ in range(steps)]
        second = sw.DataLoader(ds, batch_size=8, shuffle=True, rank=0, world_size=1, output="numpy")
        second.load_state_dict(first.state_dict())
        assert begun + [batch["__index__"].tolist() for batch in second] == whole
        first.close()
        second.close()


def test_an_error_that_is_no_samples_is_raised_at_once_and_nothing_is_begun_anew():
    class Closed(InlineExecutor):
        num_runs = 0

        def run(self, works):
            self.num_runs += 1
            for number, work in enumerate(works):
                if number == 2:
                    raise RuntimeError("the loader was closed while a batch was awaited")
                yield self.builder.build(work)

    executor = Closed(BatchBuilder(light(MemorySource(numbered_samples(100)))))
    given = []
    with pytest.raises(RuntimeError, match="was closed"):
        for batch in coalesced_batches(executor, iter(works_of([10] * 10)), 4):
            given += batch.data["__index__"].tolist()
    assert given == list(range(30))
    assert executor.num_runs == 1
