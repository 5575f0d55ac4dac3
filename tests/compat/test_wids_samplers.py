"""The samplers: true lengths, every sample, other orders and other ranks in every epoch."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.compat.wids.samplers import chunked, cut
from shardwise.compat.wids.wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardedSampler,
    ShardListSampler,
)


def ranks(num_samples, world_size, **options):
    return [
        DistributedChunkedSampler(range(num_samples), num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]


@settings(deadline=None, max_examples=150)
@given(
    num_samples=st.integers(1, 300),
    world_size=st.integers(1, 12),
    chunksize=st.integers(1, 80),
    shuffle=st.booleans(),
    shufflefirst=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_all_ranks_get_len_samples_and_together_all_of_them(
    num_samples, world_size, chunksize, shuffle, shufflefirst, epoch
):
    samplers = ranks(
        num_samples,
        world_size,
        chunksize=chunksize,
        shuffle=shuffle,
        shufflefirst=shufflefirst,
    )
    found = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        own = list(sampler)
        assert len(own) == len(sampler) == math.ceil(num_samples / world_size)
        found += own
    assert set(found) == set(range(num_samples))
    # No more repeats than the ranks need to be equal.
    assert len(found) - num_samples < world_size


@settings(deadline=None, max_examples=60)
@given(num_samples=st.integers(12, 300), world_size=st.integers(1, 12))
def test_with_drop_last_nothing_is_repeated(num_samples, world_size):
    found = [i for sampler in ranks(num_samples, world_size, drop_last=True) for i in sampler]
    assert len(found) == len(set(found)) == num_samples // world_size * world_size


def test_wids_gave_a_rank_the_same_set_in_every_epoch():
    for chunksize in (10, 1_000_000):
        samplers = ranks(1000, 4, chunksize=chunksize)
        # By itself, and by set_epoch, which gives the same.
        sets = [[frozenset(sampler) for sampler in samplers] for _ in range(4)]
        assert len({epoch[0] for epoch in sets}) == 4
        samplers[0].set_epoch(2)
        assert frozenset(samplers[0]) == sets[2][0]


def test_wids_took_rank_0_for_no_rank_and_asked_for_a_process_group(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = {"shuffle": False}
    assert list(DistributedChunkedSampler(range(8), rank=0, num_replicas=4, **options)) == [0, 1]
    assert list(DistributedChunkedSampler(range(8), rank=0, **options)) == [0, 1]
    assert list(DistributedChunkedSampler(range(8), **options)) == [6, 7]
    monkeypatch.setenv("RANK", "1")
    assert list(DistributedChunkedSampler(range(8), num_replicas=2, **options)) == [4, 5, 6, 7]


def test_ranks_that_can_not_be_are_errors():
    for options in ({"rank": 4, "num_replicas": 4}, {"rank": -1, "num_replicas": 4}):
        with pytest.raises(ValueError, match="rank"):
            DistributedChunkedSampler(range(8), **options)
    with pytest.raises(ValueError, match="drop_last"):
        DistributedChunkedSampler(range(3), rank=0, num_replicas=4, drop_last=True)
    for options in ({"num_samples": 9}, {"num_samples": (4, 4)}, {"num_samples": 0}):
        with pytest.raises(ValueError, match="num_samples"):
            DistributedChunkedSampler(range(8), rank=0, num_replicas=1, **options)


def test_frameworks_see_a_distributed_sampler():
    sampler = ranks(10, 4)[1]
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert isinstance(sampler, ChunkedSampler)
    assert (sampler.num_replicas, sampler.rank, sampler.drop_last) == (4, 1, False)
    assert (sampler.num_samples, sampler.total_size) == (3, 12)


def test_the_first_epoch_keeps_the_chunks_in_place_and_later_ones_do_not():
    sampler = ChunkedSampler(range(100), chunksize=10)
    chunks = [[i // 10 for i in sampler] for _ in range(2)]
    assert chunks[0] == sorted(chunks[0])
    assert chunks[1] != sorted(chunks[1])
    # Chunks stay whole.
    assert all(len(set(chunks[1][i : i + 10])) == 1 for i in range(0, 100, 10))
    first = [i // 10 for i in ChunkedSampler(range(100), chunksize=10, shufflefirst=True)]
    assert first != sorted(first)


def test_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        sampler = ChunkedSampler(range(200), chunksize=20, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16
    random.seed(0)
    np.random.seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist()
    order(0, 1)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_without_shuffle_the_order_is_that_of_the_data():
    sampler = ChunkedSampler(range(50), chunksize=7, shuffle=False)
    assert list(sampler) == list(sampler) == list(range(50))
    sampler = ChunkedSampler(range(50), num_samples=(11, 22), chunksize=7, shuffle=False)
    assert (list(sampler), len(sampler)) == (list(range(11, 22)), 11)


def test_an_epoch_may_be_given_a_length():
    for length in (3, 50, 120):
        sampler = ChunkedSampler(range(50), chunksize=7, dslength_per_replica=length)
        assert len(list(sampler)) == len(sampler) == length


def test_an_iteration_that_is_given_up_was_an_epoch():
    sampler = ChunkedSampler(range(50))
    next(iter(sampler))
    assert sampler.epoch == 0
    next(iter(sampler))
    assert sampler.epoch == 1


def test_whole_shards_change_places_with_a_true_length():
    sampler = ShardedSampler(None, lengths=[5, 0, 7, 3])
    assert ShardedSampler is ShardListSampler
    assert len(sampler) == 15
    assert sampler.ranges == [(0, 5), (5, 5), (5, 12), (12, 15)]
    epochs = [list(sampler) for _ in range(3)]
    assert all(sorted(epoch) == list(range(15)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]


def test_lines_of_ranges():
    assert chunked(3, 10, 4) == [(3, 7), (7, 10)]
    assert cut([(0, 2), (2, 2), (5, 8)], 1, 6) == [(1, 2), (5, 8), (0, 1)]
    with pytest.raises(ValueError, match="chunksize=0"):
        chunked(0, 1, 0)
