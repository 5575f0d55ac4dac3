"""Arrays in mapped files: they travel to worker processes as paths, and are not copied."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

import shardwise as sw
from shardwise.dataset.kept_arrays import KeptArrays, kept_or_made
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.plan import Plan
from shardwise.plan.packing import Packs
from shardwise.storage.column_file import map_array, map_file, place_of

NUM = 200_000


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(NUM)[::-1])
    return np.load(tmp_path / "ids.npy", mmap_mode="r")


def views_of(array):
    return [array, np.asarray(array), array[5:100:3], np.asarray(array)[::-1],
            array.reshape(100, -1)[3], array[:0]]  # fmt: skip


def test_a_part_of_a_mapped_file_is_found_again_by_its_place(mapped):
    for view in views_of(mapped):
        place = place_of(view)
        assert place is not None
        assert np.array_equal(map_array(*place), view)


def test_a_part_of_a_file_that_the_library_maps_is_found_again(tmp_path):
    (tmp_path / "bytes").write_bytes(bytes(range(200)))
    whole = np.frombuffer(map_file(str(tmp_path / "bytes")), np.uint8)
    for view in (whole[8:], whole[16:].view(np.uint64), whole[3::7]):
        assert np.array_equal(map_array(*place_of(view)), view)


def test_arrays_that_may_differ_from_a_file_have_no_place(tmp_path, mapped):
    path = tmp_path / "ids.npy"
    for array in (
        np.arange(9),
        np.load(path, mmap_mode="r+"),
        np.load(path, mmap_mode="c"),
        mapped * 2,
    ):
        assert place_of(array) is None
    path.unlink()
    assert place_of(mapped) is None


@pytest.mark.parametrize("is_mapped", [True, False])
def test_workers_get_a_subset_without_a_copy_in_their_pickle(mapped, is_mapped):
    data = sw.wrap(range(NUM)).subset(mapped if is_mapped else np.array(mapped))
    apart = []
    pickled = pickle_by_value(data, apart)
    assert len(pickled) < 20_000
    assert len(apart) == (not is_mapped)
    copy = pickle.loads(pickled, buffers=apart)
    assert [sample["value"] for sample in copy[:3]] == [NUM - 1, NUM - 2, NUM - 3]
    # For another machine the values travel.
    assert len(pickle_by_value(data)) > 8 * NUM


@pytest.mark.parametrize("is_mapped", [True, False])
def test_worker_processes_read_what_the_caller_reads(mapped, is_mapped):
    data = sw.wrap(range(NUM)).subset(mapped if is_mapped else np.array(mapped))
    with sw.DataLoader(data, 4, num_workers=2, output="numpy", timeout=60) as loader:
        assert next(iter(loader))["value"].tolist() == [NUM - 1, NUM - 2, NUM - 3, NUM - 4]


def test_a_subset_by_a_read_only_map_is_that_map(mapped):
    data = sw.wrap(range(NUM))
    subset = data.subset(mapped)
    assert np.shares_memory(subset.transforms.indices, mapped)
    own = np.array(mapped)
    assert not np.shares_memory(data.subset(own).transforms.indices, own)
    assert subset.fingerprint == data.subset(own).fingerprint
    assert subset.shard_sizes.tolist() == data.subset(own).shard_sizes.tolist()


@pytest.mark.parametrize("dtype", ["u2", "i8", "f4", "f8"])
def test_mapped_lengths_make_the_order_of_the_same_lengths_in_memory(tmp_path, dtype):
    lengths = np.random.default_rng(1).integers(1, 900, 20_000).astype(dtype)
    np.save(tmp_path / "lengths.npy", lengths)
    mapped = np.load(tmp_path / "lengths.npy", mmap_mode="r")
    for options in ({}, {"budget": 9000}):
        plans = [
            Plan(20_000, seed=3, shuffle="full", batch_by=sw.buckets(each, **options))
            for each in (mapped, lengths.astype(np.float64))
        ]
        assert plans[0].sampler.spec() == plans[1].sampler.spec()
        ids = [plan.sampler.indices(0, np.arange(0, plan.num_samples, 7)) for plan in plans]
        assert np.array_equal(*ids)


def test_bad_lengths_in_a_map_are_named(tmp_path):
    lengths = np.ones(3_000_000, np.float32)
    lengths[2_500_000] = np.nan
    np.save(tmp_path / "lengths.npy", lengths)
    with pytest.raises(ValueError, match=r"1 of 3000000 lengths are not finite, .* 2500000"):
        sw.buckets(np.load(tmp_path / "lengths.npy", mmap_mode="r"))


def test_planning_by_mapped_lengths_takes_memory_of_a_block(tmp_path):
    count = 8_000_000  # 64 MB as float64
    np.save(tmp_path / "lengths.npy", np.arange(count, dtype=np.uint32) % 999 + 1)
    mapped = np.load(tmp_path / "lengths.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        plan = Plan(count, world_size=64, seed=1, shuffle="full", batch_by=sw.buckets(mapped))
        assert len(plan.indices(0, 5, 3)) == 64
        assert plan.sampler.spec()["sampler"] == "buckets"
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_what_is_kept_is_mapped_from_the_first_time_on(tmp_path):
    made = Packs(4, np.array([0, 1]), np.array([0]), *(np.array([0], np.int32) for _ in range(3)))
    place = KeptArrays(str(tmp_path), name="packs", origin="this test")
    first = kept_or_made(place, Packs, lambda: made)
    assert place_of(first.documents) is not None
    assert place_of(first.documents)[0] == str(place.paths[0])
    assert kept_or_made(place, Packs, pytest.fail).length == first.length == 4
