"""DistributedSampler and BatchSampler: exact over ranks, one order, a state for any cluster."""

from __future__ import annotations

import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.dataset import Dataset
from shardwise.torch import BatchSampler, DistributedSampler
from tests.support.memory_source import MemorySource, numbered_samples

SIZES = [6, 7, 8, 9, 10]
NUM_SAMPLES = sum(SIZES)
SHUFFLES = [False, True, "full", "window"]


@pytest.fixture(scope="module")
def dataset():
    return Dataset(MemorySource(numbered_samples(NUM_SAMPLES), SIZES)).decode(cls=int)


def take_turns(by_rank):
    return [i for turn in itertools.zip_longest(*by_rank) for i in turn if i is not None]


def order_of(dataset, shuffle, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, 1, 0, shuffle=shuffle, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


# DistributedSampler


@given(st.integers(0, 300), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_distributed_ranks_get_each_sample_once_and_torchs_number_of_them(
    num_samples, world_size, drop_last, epoch
):
    data = range(num_samples)
    ranks = [
        DistributedSampler(data, world_size, rank, drop_last=drop_last)
        for rank in range(world_size)
    ]
    real = []
    for rank, sampler in enumerate(ranks):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        torchs = torch.utils.data.DistributedSampler(data, world_size, rank, drop_last=drop_last)
        assert len(indices) == len(sampler) == len(torchs)
        assert len(sampler.valid) == len(indices)
        if drop_last:
            assert sampler.valid.all()
        real += [i for i, valid in zip(indices, sampler.valid.tolist(), strict=True) if valid]
    assert len(set(real)) == len(real)
    assert len(real) == num_samples - ranks[0].num_dropped
    assert ranks[0].num_padded == sum(int((~sampler.valid).sum()) for sampler in ranks)
    assert ranks[0].num_dropped == (num_samples % world_size if drop_last else 0)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_distributed_order_is_the_same_for_every_world_size(dataset, shuffle):
    expected = order_of(dataset, shuffle, epoch=2)
    assert sorted(expected) == list(range(NUM_SAMPLES))
    for world_size in (2, 3, 4, 7):
        by_rank = []
        for rank in range(world_size):
            sampler = DistributedSampler(dataset, world_size, rank, shuffle=shuffle)
            sampler.set_epoch(2)
            by_rank.append(list(sampler))
        assert take_turns(by_rank)[:NUM_SAMPLES] == expected


def test_a_long_epoch_is_the_same_whatever_is_computed_at_a_time():
    plan = sw.Plan(20_001, batch_size=1, world_size=2, shuffle="full", remainder="pad", seed=3)
    sampler = DistributedSampler(range(20_001), 2, 1, seed=3)
    expected = [int(plan.indices(0, step, 1)[0]) for step in range(plan.num_steps)]
    assert list(sampler) == expected


def test_set_epoch_changes_the_order_and_nothing_else_does(dataset):
    sampler = DistributedSampler(dataset, 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    # Another seed's first epoch is not this seed's second.
    assert order_of(dataset, True, epoch=1, seed=0) != order_of(dataset, True, epoch=0, seed=1)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("worlds", [(2, 3), (3, 2), (4, 1), (1, 4)])
def test_a_distributed_state_is_taken_up_by_another_number_of_ranks(dataset, worlds, drop_last):
    before, after = worlds
    expected = order_of(dataset, True, epoch=1)
    samplers = [DistributedSampler(dataset, before, r, drop_last=drop_last) for r in range(before)]
    taken, states = [], []
    for sampler in samplers:
        sampler.set_epoch(1)
        taken.append(list(itertools.islice(sampler, 5)))
        states.append(json.dumps(sampler.state_dict()))
    assert len(set(states)) == 1
    assert len(states[0]) < 1024
    rest, length = [], None
    for rank in range(after):
        sampler = DistributedSampler(dataset, after, rank, drop_last=drop_last)
        sampler.load_state_dict(json.loads(states[0]))
        sampler.set_epoch(1)  # as a training loop does, after the state was loaded
        assert sampler.epoch == 1
        indices = list(sampler)
        assert len(indices) == len(sampler.valid)
        length = len(indices) if length is None else length
        assert len(indices) == length
        rest.append([i for i, ok in zip(indices, sampler.valid.tolist(), strict=True) if ok])
        # The end of the epoch: a program that names the epoch again has nothing left of it.
        assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, NUM_SAMPLES)
        sampler.set_epoch(2)
        assert len(list(sampler)) == len(sampler)
    # By position, so that the first rank to go on is the one whose turn it is.
    got = sorted(i for part in (*taken, *rest) for i in part)
    if not drop_last:
        assert got == list(range(NUM_SAMPLES))
    assert len(set(got)) == len(got)
    assert set(got) == set(expected[: len(got)])


def test_a_distributed_state_counts_what_the_program_took_if_it_says_so(dataset):
    sampler = DistributedSampler(dataset, 2, 0)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=2, sampler=sampler, num_workers=2, prefetch_factor=2
    )
    batches = iter(loader)
    next(batches)
    assert sampler.state_dict()["position"] > 4  # what workers were given, ahead of the program
    assert sampler.state_dict(num_samples=2)["position"] == 4
    with pytest.raises(ValueError, match="num_samples=21: epoch 0 has 20 samples from position"):
        sampler.state_dict(num_samples=21)
    assert len(list(batches)) == 9  # torch's workers end quietly only after the last batch


def test_a_state_of_other_data_or_another_seed_is_refused_with_a_diff(dataset):
    state = DistributedSampler(dataset, 2, 0, seed=3).state_dict()
    with pytest.raises(sw.StateError, match="seed: the state has 3, this loader 4"):
        DistributedSampler(dataset, 2, 0, seed=4).load_state_dict(state)
    with pytest.raises(sw.StateError, match="fingerprint"):
        DistributedSampler(dataset.subset(range(20)), 2, 0, seed=3).load_state_dict(state)
    state = BatchSampler(10, 2, rank=0, world_size=1).state_dict()
    with pytest.raises(sw.StateError, match="num_samples: the state has 10, this loader 11"):
        BatchSampler(11, 2, rank=0, world_size=1).load_state_dict(state)


def test_frameworks_take_it_for_torchs_sampler(dataset):
    sampler = DistributedSampler(dataset, 4, 1)
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.shuffle) == (4, 1, 0, True)
    assert sampler.total_size == 4 * len(sampler)


def test_without_arguments_rank_and_world_size_are_discovered(dataset, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(sw.RankError, match="WORLD_SIZE is not"):
        DistributedSampler(dataset)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert list(DistributedSampler(dataset)) == list(DistributedSampler(dataset, 4, 2))
    assert BatchSampler(dataset, 2).rank == 2
    with pytest.raises(ValueError, match="give both, or neither"):
        DistributedSampler(dataset, num_replicas=4)


def test_a_pickled_sampler_keeps_its_place(dataset):
    sampler = DistributedSampler(dataset, 2, 1)
    sampler.set_epoch(3)
    first = list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))
    assert (copy.epoch, copy.rank, list(copy)) == (3, 1, first)


# BatchSampler


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_batches_are_the_plans(dataset, shuffle, remainder):
    options = {"shuffle": shuffle, "remainder": remainder, "seed": 5}
    plan = sw.Plan(NUM_SAMPLES, batch_size=4, world_size=3, shard_sizes=SIZES, **options)
    if shuffle == "full":
        plan = sw.Plan(NUM_SAMPLES, batch_size=4, world_size=3, **options)
    for rank in range(3):
        sampler = BatchSampler(dataset, 4, rank=rank, world_size=3, **options)
        sampler.set_epoch(2)
        batches = list(sampler)
        assert len(batches) == len(sampler) == plan.num_steps
        assert batches == [plan.indices(2, step, rank).tolist() for step in range(plan.num_steps)]
        for step, batch in enumerate(batches):
            assert len(sampler.valid(step)) == len(batch)
        assert all(type(i) is int for batch in batches for i in batch)


def test_a_batch_state_is_taken_up_with_other_ranks_and_another_batch_size(dataset):
    expected = order_of(dataset, "full", epoch=1)
    before = [BatchSampler(dataset, 4, shuffle="full", rank=r, world_size=2) for r in range(2)]
    taken = []
    for sampler in before:
        sampler.set_epoch(1)
        taken += [i for batch in itertools.islice(sampler, 2) for i in batch]
    (state,) = {json.dumps(sampler.state_dict()) for sampler in before}
    rest = []
    for rank in range(3):
        sampler = BatchSampler(
            dataset, 5, shuffle="full", remainder="uneven", rank=rank, world_size=3
        )
        sampler.load_state_dict(json.loads(state))
        sampler.set_epoch(sampler.epoch)
        rest += [i for batch in sampler for i in batch]
        state_at_end = sampler.state_dict()
        assert (state_at_end["epoch"], state_at_end["position"]) == (1, NUM_SAMPLES)
    assert set(taken) == set(expected[:16])
    assert sorted(taken + rest) == list(range(NUM_SAMPLES))


def test_a_state_of_which_less_than_a_global_batch_is_left_stays_until_the_next_epoch():
    small = BatchSampler(20, 3, rank=0, world_size=2)
    state = small.state_dict(num_batches=2)
    assert state["position"] == 12
    large = BatchSampler(20, 9, remainder="drop", rank=0, world_size=1)
    large.load_state_dict(state)
    assert large.state_dict() == state
    assert list(large) == []
    large.set_epoch(1)
    assert len(list(large)) == len(large) == 2


def test_the_batch_state_counts_what_the_program_took_if_it_says_so():
    sampler = BatchSampler(20, 2, rank=0, world_size=2)
    assert len(list(itertools.islice(sampler, 3))) == 3
    assert sampler.state_dict()["position"] == 12
    assert sampler.state_dict(num_batches=1)["position"] == 4
    with pytest.raises(ValueError, match="num_batches=6: epoch 0 has 5 batches from position 0 on"):
        sampler.state_dict(num_batches=6)
    # A new pass counts anew, and the old one no longer counts.
    old = iter(sampler)
    iter(sampler)
    next(old)
    assert sampler.state_dict()["position"] == 0


def test_lightning_finds_set_epoch_where_it_looks():
    sampler = BatchSampler(20, 2, shuffle=True, rank=0, world_size=2)
    first = list(sampler)
    sampler.sampler.set_epoch(1)
    assert list(sampler) != first


def test_a_global_batch_that_the_data_do_not_fill_is_refused_with_the_values():
    with pytest.raises(ValueError, match=r"7 samples do not fill .* batch_size=4 x world_size=2"):
        BatchSampler(7, 4, remainder="drop", rank=0, world_size=2)
    assert len(BatchSampler(7, 4, remainder="pad", rank=0, world_size=2)) == 1


def test_an_epoch_below_0_is_refused(dataset):
    for sampler in (BatchSampler(20, 2), DistributedSampler(dataset, 1, 0)):
        with pytest.raises(ValueError, match="epoch=-1: use 0 or more"):
            sampler.set_epoch(-1)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: sw.DataLoader(data, batch_size=4, shuffle=True, num_threads=0),
        lambda data: sw.torch.IterableDataset(data, batch_size=4, shuffle=True),
        lambda data: BatchSampler(data, 4, shuffle=True),
        lambda data: DistributedSampler(data, 2, 0),
    ],
)
def test_the_programs_random_state_stays_untouched(make, dataset):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    made = make(dataset)
    made.set_epoch(1)
    list(made)
    assert states() == before


def test_torchs_own_default_of_shuffle_shuffles_nothing():
    dataset = sw.wrap(range(6))
    parts = [sw.torch.BatchSampler(6, 2, shuffle=None)]
    parts += [sw.torch.IterableDataset(dataset, batch_size=2, shuffle=None)]
    batches, columns = map(list, parts)
    assert batches == [batch["__index__"].tolist() for batch in columns] == [[0, 1], [2, 3], [4, 5]]
