"""Epochs that are read again are warned of once, in every entry point alike."""

from __future__ import annotations

import warnings
from itertools import islice

import pytest
import torch.utils.data

import shardwise as sw

DATA = [{"x": i} for i in range(24)]


def parts(kind: str, *, shuffle: bool, num_workers: int = 0, rank: int = 0):
    """What has `set_epoch`, and what is iterated."""
    ranks = {"rank": rank, "world_size": 2}
    if kind == "DataLoader":
        loader = sw.DataLoader(DATA, 2, shuffle, num_threads=0, **ranks)
        return loader, loader
    torchs = torch.utils.data.DataLoader
    if kind.endswith("in StatefulDataLoader"):
        torchs = sw.torch.StatefulDataLoader
    if kind.startswith("IterableDataset"):
        it = sw.torch.IterableDataset(sw.wrap(DATA), batch_size=2, shuffle=shuffle, **ranks)
        loader = torchs(it, batch_size=None, num_workers=num_workers)
        return (loader if torchs is not torch.utils.data.DataLoader else it), loader
    if kind.startswith("BatchSampler"):
        sampler = sw.torch.BatchSampler(DATA, 2, shuffle=shuffle, **ranks)
        loader = torchs(DATA, batch_sampler=sampler)
    else:
        sampler = sw.torch.DistributedSampler(DATA, 2, rank, shuffle)
        loader = torchs(DATA, 2, sampler=sampler)
    return (loader if torchs is not torch.utils.data.DataLoader else sampler), loader


KINDS = [
    "DataLoader",
    *("IterableDataset", "BatchSampler", "DistributedSampler"),
    *(f"{kind} in StatefulDataLoader" for kind in ("IterableDataset", "BatchSampler")),
]


def warned(act) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught if "read again" in str(w.message)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_left_early_three_times_is_warned_of_once_with_both_ways(kind):
    _, loader = parts(kind, shuffle=True)
    [text] = warned(lambda: [list(islice(loader, 2)) for _ in range(4)])
    assert "epoch 0" in text
    assert "set_epoch(1)" in text
    assert "epoch_size=" in text


def test_workers_that_live_on_are_known_to_begin_again():
    _, loader = parts("IterableDataset", shuffle=True, num_workers=1)
    assert loader.num_workers == 1
    # The warning is a worker's: the cells that it shares tell.
    for _ in range(3):
        list(islice(loader, 2))
    assert list(loader.dataset._notice._cells[:]) == [2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_look_at_a_batch_storage_order_other_ranks_and_named_epochs_are_not_warned_of(kind):
    _, loader = parts(kind, shuffle=True)
    assert not warned(lambda: [next(iter(loader)), list(loader)])
    _, loader = parts(kind, shuffle=False)
    assert not warned(lambda: [list(islice(loader, 2)) for _ in range(4)])
    _, loader = parts(kind, shuffle=True, rank=1)
    assert not warned(lambda: [list(islice(loader, 2)) for _ in range(4)])
    named, loader = parts(kind, shuffle=True)

    def train():
        for epoch in range(4):
            named.set_epoch(epoch)
            list(islice(loader, 2))

    assert not warned(train)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_goes_back_behind_a_loaded_state_is_warned_of(kind):
    stateful, loader = parts(kind, shuffle=True)
    stateful.set_epoch(3)
    list(islice(loader, 2))
    state = stateful.state_dict()
    again, _ = parts(kind, shuffle=True)
    again.load_state_dict(state)
    assert not warned(lambda: again.set_epoch(3))
    again.load_state_dict(state)
    [text] = warned(lambda: again.set_epoch(2))
    assert "set_epoch(2)" in text
    assert "epoch 3" in text
    assert not warned(lambda: again.set_epoch(1))


@pytest.mark.parametrize("kind", ["BatchSampler", "DistributedSampler", "IterableDataset"])
@pytest.mark.parametrize("named", [0, 1])
def test_a_state_after_the_last_batch_repeats_nothing_whichever_epoch_is_named(kind, named):
    part, loader = parts(kind, shuffle=True)
    part.set_epoch(0)
    seen = [i for batch in loader for i in batch["x"].tolist()]
    state = part.state_dict()
    part, loader = parts(kind, shuffle=True)
    part.load_state_dict(state)
    part.set_epoch(named)
    rest = [i for batch in loader for i in batch["x"].tolist()]
    assert len(set(seen)) == 12
    assert len(rest) == (0 if named == 0 else 12)
    # The loader goes on with the next epoch.
    resumed = sw.DataLoader(sw.wrap(DATA), 2, shuffle=True, rank=0, world_size=2)
    if kind == "IterableDataset":
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        assert len(list(resumed)) == 6
