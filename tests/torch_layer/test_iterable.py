"""IterableDataset in torch's own DataLoader: epochs, resume, errors, and what it must not touch.

The product of ranks, workers and start methods is in test_matrix.py. Loaders are read to their
end here: torch's workers complain on stderr when they are left in the middle of an epoch.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.dataset import Dataset
from shardwise.torch import IterableDataset
from tests.support.memory_source import MemorySource, numbered_samples

# More workers than cores is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIZES = list(range(6, 16))
NUM_SAMPLES = sum(SIZES)


@pytest.fixture
def source():
    return MemorySource(numbered_samples(NUM_SAMPLES), SIZES)


@pytest.fixture
def dataset(source):
    return Dataset(source).select("cls").decode(cls=int)


def ids(batches):
    return [batch["__index__"].tolist() for batch in batches]


def loader_of(it, num_workers=0, **options):
    return DataLoader(it, batch_size=None, num_workers=num_workers, **options)


def error_of(loader):
    """The error that reading a loader ends with, without the frames that hold its workers."""
    iterator = iter(loader)
    try:
        for _ in iterator:
            pass
    except (sw.ShardwiseError, UserWarning) as error:
        return error.with_traceback(None)
    raise AssertionError("no error")


def global_order(dataset, epoch=0, **options):
    """The whole order of an epoch, by sw.DataLoader on one rank."""
    options = {"batch_size": 4, "remainder": "uneven", "output": "numpy", **options}
    loader = sw.DataLoader(dataset, rank=0, world_size=1, executor="inline", **options)
    loader.set_epoch(epoch)
    return [i for batch in loader for i in batch["__index__"].tolist()]


def gathered(batches_by_rank):
    """All ranks' batches as one sequence, rank after rank within each step."""
    return [i for step in zip(*batches_by_rank, strict=True) for batch in step for i in batch]


# Batches


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_batches_are_those_of_the_librarys_own_loader(dataset, remainder, output):
    options = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "remainder": remainder,
        "rank": 1,
        "world_size": 3,
        "output": output,
    }
    own = sw.DataLoader(dataset, executor="inline", **options)
    for num_threads in (0, 2):
        it = IterableDataset(dataset, num_threads=num_threads, **options)
        assert len(it) == len(loader_of(it)) == len(own)
        got = list(loader_of(it, collate_fn=lambda batch: batch))
        own.set_epoch(0)
        for batch, expected in zip(got, own, strict=True):
            assert batch.keys() == expected.keys()
            assert type(batch["cls"]) is type(expected["cls"])
            for name in batch:
                assert list(batch[name]) == list(expected[name]), name


def test_augmentation_is_the_same_for_any_number_of_workers(dataset):
    def jitter(sample, rng):
        return {**sample, "noise": float(rng.random())}

    noisy = dataset.map(jitter)
    seen = []
    for num_workers in (0, 1, 3):
        it = IterableDataset(noisy, batch_size=8, shuffle=True, seed=1)
        seen.append([batch["noise"].tolist() for batch in loader_of(it, num_workers)])
    assert seen[0] == seen[1] == seen[2]
    assert len(set(itertools.chain(*seen[0]))) > 90


def test_a_collate_function_makes_the_batch(dataset):
    it = IterableDataset(dataset, batch_size=4, collate=lambda samples: [s["cls"] for s in samples])
    assert next(iter(it)) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_virtual_epochs_walk_on_through_the_data(dataset, num_workers):
    it = IterableDataset(dataset, batch_size=5, shuffle=True, epoch_size=35, rank=0, world_size=1)
    loader = loader_of(it, num_workers)
    assert len(loader) == 7
    seen = []
    for epoch in range(3):
        it.set_epoch(epoch)
        seen += itertools.chain(*ids(loader))
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_more_workers_than_steps_is_no_problem(dataset):
    it = IterableDataset(dataset, batch_size=50, remainder="drop")
    assert ids(loader_of(it, 4)) == [list(range(50)), list(range(50, 100))]


# Epochs


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_changes_the_order_and_reaches_workers_that_live_on(
    dataset, num_workers, persistent
):
    it = IterableDataset(dataset, batch_size=4, shuffle=True, remainder="uneven")
    loader = loader_of(it, num_workers, persistent_workers=persistent and num_workers > 0)
    seen = []
    for epoch in (0, 1, 5, 0):
        it.set_epoch(epoch)
        order = list(itertools.chain(*ids(loader)))
        assert order == global_order(dataset, epoch, shuffle=True)
        seen.append(order)
    assert seen[0] == seen[3]
    assert seen[0] != seen[1] != seen[2]


def test_an_epoch_that_is_set_while_workers_start_is_the_next_ones(dataset):
    it = IterableDataset(dataset, batch_size=1, shuffle=True)
    batches = iter(loader_of(it, 3))
    it.set_epoch(7)
    assert list(itertools.chain(*ids(batches))) == global_order(dataset, 0, shuffle=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffled_epoch_that_is_read_again_warns_once(dataset, num_workers):
    def read(it, epochs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for epoch in epochs:
                if epoch is not None:
                    it.set_epoch(epoch)
                list(loader_of(it, num_workers))
        return [str(w.message) for w in caught if "is read again" in str(w.message)]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is read again")
        # Worker processes inherit the filter: a warning would come back as an error.
        shuffled = IterableDataset(dataset, batch_size=8, shuffle=True)
        assert read(shuffled, [0, 1, 1, 0]) == []
    assert read(IterableDataset(dataset, batch_size=8), [None, None]) == []
    if num_workers == 0:
        messages = read(IterableDataset(dataset, batch_size=8, shuffle=True), [None] * 4)
        assert len(messages) == 1
        assert "call set_epoch(1)" in messages[0]
    else:
        again = IterableDataset(dataset, batch_size=8, shuffle=True)
        list(loader_of(again, num_workers))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*is read again")
            error = error_of(loader_of(again, num_workers))
            assert isinstance(error, UserWarning)
            assert "call set_epoch(1)" in str(error)
            list(loader_of(again, num_workers))


# State


@pytest.mark.parametrize(
    ("before", "after", "persistent"),
    [
        # (world size, batch size, workers)
        ((2, 4, 2), (2, 4, 3), False),
        ((2, 4, 3), (3, 4, 0), True),
        pytest.param((3, 4, 0), (2, 6, 2), False, marks=pytest.mark.long),
        ((3, 4, 0), (2, 6, 2), True),
        pytest.param((1, 8, 1), (4, 3, 2), True, marks=pytest.mark.long),
    ],
)
def test_a_state_is_taken_up_by_other_ranks_batch_sizes_and_workers(
    dataset, before, after, persistent
):
    def readers(world_size, batch_size, num_workers):
        for rank in range(world_size):
            it = IterableDataset(
                dataset,
                batch_size=batch_size,
                shuffle=True,
                seed=2,
                remainder="uneven",
                rank=rank,
                world_size=world_size,
            )
            lives_on = persistent and num_workers > 0
            yield it, loader_of(it, num_workers, persistent_workers=lives_on)

    taken, states = [], set()
    for it, loader in readers(*before):
        it.set_epoch(3)
        taken.append(ids(loader)[:5])
        states.add(json.dumps(it.state_dict(num_batches=5)))
    (state,) = states
    assert len(state) < 1024
    rest, later = [], []
    for it, loader in readers(*after):
        num_steps = len(loader)
        if persistent:
            list(loader)  # the workers are there already when the state comes
        it.load_state_dict(json.loads(state))
        assert it.epoch == 3
        it.set_epoch(3)
        rest.append(ids(loader))
        assert len(loader) == num_steps
        it.set_epoch(4)
        later.append(ids(loader))
    assert (
        gathered(taken)
        == global_order(dataset, 3, shuffle=True, seed=2)[: 5 * before[0] * before[1]]
    )
    everything = sorted(gathered(taken) + gathered(rest))
    assert everything == list(range(NUM_SAMPLES))
    assert gathered(later) == global_order(dataset, 4, shuffle=True, seed=2)


def test_without_workers_the_state_counts_by_itself(dataset):
    it = IterableDataset(dataset, batch_size=4, shuffle=True)
    assert it.state_dict()["position"] == 0
    batches = iter(loader_of(it))
    for count in range(1, len(it) + 1):
        next(batches)
        state = it.state_dict()
        assert state == it.state_dict(num_batches=count)
        if count < len(it):
            assert (state["epoch"], state["position"]) == (0, 4 * count)
    # The end of the epoch, not yet the next one.
    assert (state["epoch"], state["position"]) == (0, len(dataset))
    it.set_epoch(0)  # it was read, so it begins anew
    assert (it.state_dict()["epoch"], it.state_dict()["position"]) == (0, 0)
    it.set_epoch(1)
    assert (it.state_dict()["epoch"], it.state_dict()["position"]) == (1, 0)


def test_with_workers_the_program_must_say_how_many_batches_it_took(dataset):
    it = IterableDataset(dataset, batch_size=4)
    batches = iter(loader_of(it, 2))
    next(batches)
    with pytest.raises(sw.StateError, match=r"state_dict\(num_batches=\.\.\.\)"):
        it.state_dict()
    assert it.state_dict(num_batches=1)["position"] == 4
    with pytest.raises(ValueError, match="num_batches=28: epoch 0 has 27 batches from position 0"):
        it.state_dict(num_batches=28)
    list(batches)


def test_the_state_is_the_librarys_own_loaders(dataset):
    options = {"batch_size": 4, "shuffle": True, "rank": 0, "world_size": 1}
    it = IterableDataset(dataset, **options)
    own = sw.DataLoader(dataset, executor="inline", **options)
    first = ids(itertools.islice(loader_of(it), 3))
    assert first
    own.load_state_dict(it.state_dict())
    rest = ids(own)
    it.set_epoch(0)
    assert first + rest == ids(loader_of(it))
    expected = IterableDataset(dataset, **options)
    expected.load_state_dict(own.state_dict())
    assert expected.epoch == 1


def test_a_state_of_another_seed_is_refused_with_a_diff(dataset):
    state = IterableDataset(dataset, shuffle=True, seed=3).state_dict()
    with pytest.raises(sw.StateError, match="seed: the state has 3, this loader 4"):
        IterableDataset(dataset, shuffle=True, seed=4).load_state_dict(state)


class AsksInWorker(IterableDataset):
    def __iter__(self):
        if torch.utils.data.get_worker_info() is not None:
            self.load_state_dict({"version": 1})
        return super().__iter__()


def test_a_worker_refuses_a_state_that_is_not_its_own(dataset):
    it = AsksInWorker(dataset, rank=0, world_size=1)
    error = error_of(loader_of(it, 1))
    assert isinstance(error, sw.StateError)
    assert "worker 0 of 1 got the state of no worker" in str(error)


# Ranks


class DiscoversInWorker(torch.utils.data.IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(IterableDataset(self.dataset))


def test_a_worker_never_discovers_ranks_by_itself(dataset):
    error = error_of(loader_of(DiscoversInWorker(dataset), 1))
    assert isinstance(error, sw.RankError)
    assert "worker 0 of 1 of a torch DataLoader" in str(error)


def test_the_rank_travels_with_every_copy(dataset, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    it = IterableDataset(dataset, batch_size=4, shuffle=True)
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("WORLD_SIZE", "1")
    it.set_epoch(2)
    expected = ids(loader_of(it))
    for again in (pickle.loads(pickle.dumps(it)), copy.deepcopy(it)):
        assert (again.rank, again.world_size, again.epoch) == (1, 2, 2)
        loader = loader_of(again, 2, persistent_workers=True)
        assert ids(loader) == expected
        # A copy is a dataset of its own: its workers hear of its epochs, not of the original's.
        it.set_epoch(3)
        again.set_epoch(4)
        assert ids(loader) != expected
        again.set_epoch(2)
        assert ids(loader) == expected
        it.set_epoch(2)


# Errors


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_sample_names_itself_in_the_main_process(source, dataset, num_workers):
    source.fail_at(50)
    it = IterableDataset(dataset, batch_size=4)
    error = error_of(loader_of(it, num_workers))
    assert isinstance(error, sw.DataError)
    for part in ("damaged", "memory://set/", "key-00050", "index 50"):
        assert part in str(error)


# What it must not touch


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_no_shared_memory_keeps_a_name(dataset):
    def names():
        return {path.name for path in Path("/dev/shm").iterdir() if str(os.getpid()) in path.name}

    before = names()
    it = IterableDataset(dataset)
    assert len(it) == 2
    assert names() == before
