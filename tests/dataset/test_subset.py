"""Subsets: a selection of the index, checked once, never a filter at run time."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource, numbered_samples

SIZES = [5, 0, 7, 20]


def make():
    return Dataset(MemorySource(numbered_samples(sum(SIZES)), SIZES)).select("cls").decode(cls=int)


def ids(ds):
    return [sample["cls"] for sample in ds]


@given(st.lists(st.integers(0, 31)))
@settings(deadline=None)
def test_a_subset_holds_the_samples_in_the_order_given(taken):
    ds = make().subset(taken)
    assert len(ds) == len(taken)
    assert ids(ds) == taken
    assert ds.load(np.arange(len(taken)))["__key__"] == [f"key-{i:05d}" for i in taken]


@given(st.lists(st.booleans(), min_size=32, max_size=32))
@settings(deadline=None)
def test_a_mask_takes_what_is_true(mask):
    assert ids(make().subset(mask)) == [i for i in range(32) if mask[i]]
    assert ids(make().subset(np.array(mask))) == [i for i in range(32) if mask[i]]


@given(st.data())
@settings(deadline=None)
def test_a_subset_of_a_subset_is_indexed_by_the_first_ones_samples(data):
    outer = data.draw(st.lists(st.integers(0, 31), min_size=1))
    inner = data.draw(st.lists(st.integers(0, len(outer) - 1)))
    ds = make().subset(outer).subset(inner)
    assert ids(ds) == [outer[i] for i in inner]
    assert ds.fingerprint == make().subset([outer[i] for i in inner]).fingerprint


@given(st.lists(st.integers(0, 31)).map(sorted))
@settings(deadline=None)
def test_an_ascending_subset_keeps_the_counts_of_its_shards(taken):
    borders = np.cumsum(SIZES)
    counts = [0] * len(SIZES)
    for i in taken:
        counts[int(np.searchsorted(borders, i, side="right"))] += 1
    sizes = make().subset(taken).shard_sizes
    assert sizes.tolist() == counts
    assert sizes.dtype == np.int64


def test_a_subset_that_jumps_between_shards_counts_as_one():
    assert make().subset([30, 2, 7]).shard_sizes.tolist() == [3]


@pytest.mark.parametrize("bad", [32, -1, 10**15])
def test_an_index_out_of_range_is_named(bad):
    with pytest.raises(IndexError, match=rf"index {bad}, number 2 of 4, is not in \[0, 32\)"):
        make().subset([1, 2, bad, 3])


def test_the_range_is_that_of_the_dataset_it_is_taken_of():
    with pytest.raises(IndexError, match=r"\[0, 3\)"):
        make().subset([1, 2, 3]).subset([3])


@pytest.mark.parametrize(
    ("indices", "error", "words"),
    [
        (np.ones(31, dtype=bool), ValueError, "31"),
        (np.ones((2, 32), dtype=bool), ValueError, "32"),
        ([[1], [2]], ValueError, "one dimension"),
        ([1.0, 2.0], TypeError, "float64"),
        (["a"], TypeError, "U1"),
        (3, ValueError, "one dimension"),
    ],
)
def test_what_is_neither_indices_nor_a_mask_is_refused(indices, error, words):
    with pytest.raises(error, match=words):
        make().subset(indices)


def test_the_subset_is_not_the_callers_array():
    taken = np.array([3, 4])
    ds = make().subset(taken)
    taken[:] = 9
    assert ids(ds) == [3, 4]
    assert ids(pickle.loads(pickle.dumps(ds))) == [3, 4]


def test_fingerprints_tell_subsets_apart():
    subsets = [None, [], [0], [1], [0, 1], [1, 0], [0, 0], list(range(32))]
    seen = {(make() if s is None else make().subset(s)).fingerprint for s in subsets}
    assert len(seen) == len(subsets)
    mask = np.zeros(32, dtype=bool)
    mask[[0, 1]] = True
    assert make().subset(mask).fingerprint == make().subset(np.array([0, 1])).fingerprint


def test_a_subsets_fingerprint_stays_what_it_is():
    # States of running trainings hold it: a change here makes them foreign.
    assert make().subset([3, 1, 2]).fingerprint == "b4b90addb3fbd756"


def test_urls_are_those_of_the_samples_in_the_source():
    ds = make().subset([31, 4])
    assert ds.url_of(0) == "memory://set/003.mem"
    assert ds.describe(1) == "sample 1 of memory://set/000.mem"


def test_a_sources_error_names_the_sample_of_the_subset():
    source = MemorySource(numbered_samples(32), SIZES)
    source.fail_at(20)
    ds = Dataset(source).subset([7, 20, 3])
    for read in (lambda: ds[1], lambda: ds.load(np.array([2, 1])), lambda: list(ds)):
        with pytest.raises(DataError) as caught:
            read()
        assert (caught.value.index, caught.value.key) == (1, "key-00020")
