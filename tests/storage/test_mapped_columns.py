"""Arrays in mapped files: they travel to worker processes as paths, and are not copied."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.processes.pickling import pickle_by_value
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
