"""What transforms return lies in the batch's memory from the second batch on; batches are equal."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.processes.shared_memory import InSharedMemory, learned_layout, write_in_place
from shardwise.engine.request import BatchRequest
from shardwise.testing import assert_batches_equal
from tests.support.memory_source import MemorySource, numbered_samples

NUM = 96


def picture(sample):
    i = int(sample["cls"])
    return {
        "cls": i,
        "picture": np.full((3, 8, 8), i, np.float32),
        "odd": np.arange(100 + (i == 50), dtype=np.int64),
        "txt": sample["txt"].decode(),
    }


def works(size=16):
    return [BatchRequest(0, s, np.arange(s * size, (s + 1) * size)) for s in range(NUM // size)]


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_batches_of_transforms_are_those_of_the_inline_executor(on_error):
    source = MemorySource(numbered_samples(NUM))
    if on_error != "raise":
        source.fail_at(37)
    maker = BatchBuilder(Dataset(source).map(picture), on_error=on_error)
    executor = ProcessExecutor(maker, num_workers=2, num_prefetch=2, timeout=120)
    made = [batch.data for batch in executor.run(iter(works()))]
    made += [batch.data for batch in executor.run(iter(works()))]
    executor.close()
    for data, work in zip(made, works() * 2, strict=True):
        assert_batches_equal(data, maker.build(work).data)


def test_later_batches_of_arrays_lie_in_memory_that_is_mapped_once():
    maker = BatchBuilder(Dataset(MemorySource(numbered_samples(NUM))).map(picture))
    executor = ProcessExecutor(maker, num_workers=1, num_prefetch=2, timeout=120)
    last = None
    for batch in executor.run(iter(works())):
        last = batch.data["picture"]
    slot = owner(last)
    assert type(slot).__name__ == "Lease", "the batch came as a message"
    assert not isinstance(slot, mmap.mmap)
    executor.close()


def test_a_layout_is_learned_of_large_rows_of_arrays_that_are_not_known_yet():
    data = {
        "a": np.zeros((2, 100), np.float32),
        "known": np.zeros((2, 100), np.float32),
        "small": np.zeros(2),
        "list": [1, 2],
    }
    assert learned_layout(data, {"known": ((100,), np.dtype(np.float32))}) == {
        "a": ((100,), np.dtype(np.float32))
    }


@pytest.mark.parametrize(
    "column",
    [
        [np.ones(4), np.ones(5)],
        [np.ones(4), np.ones(4, np.float32)],
        [np.ones(4), None],
        np.ones((2, 5)),
        ["a", "b"],
    ],
)
def test_what_does_not_fit_stays_as_it_is(column):
    memory = {"x": np.zeros((2, 4))}
    assert write_in_place({"x": column}, memory)["x"] is column
    assert not memory["x"].any()


def test_what_fits_is_written_and_stands_in_its_place():
    memory = {"x": np.zeros((2, 4))}
    placed = write_in_place({"__key__": ["a", "b"], "x": [np.ones(4), np.full(4, 2.0)]}, memory)
    assert placed == {"__key__": ["a", "b"], "x": InSharedMemory(2)}
    assert memory["x"].tolist() == [[1.0] * 4, [2.0] * 4]
