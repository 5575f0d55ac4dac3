"""Lengths in mapped files: the order of lengths in memory, by a block of them at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan import Plan


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
