"""Passes after a resumed one are whole: however the resumed one was ended, named or not."""

from __future__ import annotations

import itertools
import warnings

import pytest
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.torch import DistributedSampler, StatefulDataLoader
from tests.support.trainers import needs
from tests.torch_layer.test_stateful import BATCH_SIZE, PARTS, make_loader, values

NUM_STEPS, NUM_TAKEN = 7, 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'pin_memory':"),
    pytest.mark.filterwarnings("ignore:epoch . is read again"),
]


def ways(names, ends):
    """All without workers; with two, each value once, and the rest only where there is time."""
    chosen = []
    for name, end in itertools.product(names, ends):
        is_rest = names.index(name) % len(ends) != ends.index(end)
        called = f"{name}-{'to the end' if end else 'by len'}"
        chosen.append(pytest.param(0, name, end, id=f"0-{called}"))
        marks = [pytest.mark.long] if is_rest else []
        chosen.append(pytest.param(2, name, end, id=f"2-{called}", marks=marks))
    return chosen


def epochs_of(part):
    """The batches of epochs 0 to 2, whole."""
    loader, keeper = make_loader(DataLoader, part, 0)
    found = []
    for epoch in range(3):
        keeper.set_epoch(epoch)
        found.append(values(loader))
    assert found[0] != found[1]
    return found


def read(loader, num_batches, *, to_the_end):
    """The batches of a pass; else as those do who count steps and never ask for the end."""
    if to_the_end:
        return values(loader)
    return values(itertools.islice(iter(loader), num_batches))


def state_in_the_middle(part):
    _, keeper = make_loader(DataLoader, part, 0)
    size = BATCH_SIZE if isinstance(keeper, DistributedSampler) else 1
    return keeper.state_dict(NUM_TAKEN * size)


@pytest.mark.parametrize(("num_workers", "named", "to_the_end"), ways([True, False], [True, False]))
@pytest.mark.parametrize("part", PARTS)
def test_after_a_resume_torchs_loader_reads_whole_epochs(part, num_workers, named, to_the_end):
    whole = epochs_of(part)
    loader, keeper = make_loader(DataLoader, part, num_workers)
    keeper.load_state_dict(state_in_the_middle(part))
    found = []
    for epoch in range(3):
        if named:
            keeper.set_epoch(epoch)
        num_batches = NUM_STEPS - NUM_TAKEN if epoch == 0 else NUM_STEPS
        found.append(read(loader, num_batches, to_the_end=to_the_end))
    assert len(loader) == NUM_STEPS
    # Who names no epoch reads the same one again, as with torch's own sampler.
    later = whole[1:] if named else [whole[0]] * 2
    assert found == [whole[0][NUM_TAKEN:], *later]


@pytest.mark.parametrize(
    ("num_workers", "named", "to_the_end"), ways(["loader", "keeper", None], [True, False])
)
@pytest.mark.parametrize("part", PARTS)
def test_after_a_resume_our_stateful_loader_goes_on_with_the_next_epoch(
    part, num_workers, named, to_the_end
):
    whole = epochs_of(part)
    loader, keeper = make_loader(StatefulDataLoader, part, num_workers)
    loader.load_state_dict(state_in_the_middle(part))
    found = []
    for epoch in range(3):
        if named:
            {"loader": loader, "keeper": keeper}[named].set_epoch(epoch)
        num_batches = NUM_STEPS - NUM_TAKEN if epoch == 0 else NUM_STEPS
        found.append(read(loader, num_batches, to_the_end=to_the_end))
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (epoch + 1, 0)
    assert found == [whole[0][NUM_TAKEN:], *whole[1:]]


@pytest.mark.parametrize("part", PARTS)
def test_a_resumed_pass_that_was_left_is_the_same_again(part):
    whole = epochs_of(part)
    # With two workers all that is left is read ahead before the first batch is taken.
    loader, _ = make_loader(StatefulDataLoader, part, 2, prefetch_factor=4)
    loader.load_state_dict(state_in_the_middle(part))
    state = loader.state_dict()
    assert read(loader, 1, to_the_end=False) == whole[0][NUM_TAKEN : NUM_TAKEN + 1]
    assert loader.epoch == 0
    assert values(loader) == whole[0][NUM_TAKEN:]
    assert loader.epoch == 1
    loader.load_state_dict(state)
    assert values(loader) == whole[0][NUM_TAKEN:]


@needs("torchdata")
@pytest.mark.parametrize("named", [True, False], ids=["set_epoch", "no set_epoch"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("part", PARTS)
def test_after_a_resume_torchdatas_loader_reads_whole_epochs(part, num_workers, named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader as Torchdata

    whole = epochs_of(part)
    first, _ = make_loader(Torchdata, part, num_workers)
    for number, _ in enumerate(first, start=1):
        if number == NUM_TAKEN:
            state = first.state_dict()
    second, keeper = make_loader(Torchdata, part, num_workers)
    second.load_state_dict(state)
    found = []
    for epoch in range(3):
        if named and epoch:
            keeper.set_epoch(epoch)
        found.append(values(second))
    later = whole[1:] if named else [whole[0]] * 2
    assert found == [whole[0][NUM_TAKEN:], *later]


def test_an_epoch_of_which_len_batches_were_taken_begins_anew_when_it_is_named():
    loader = sw.DataLoader(sw.wrap(range(20)), batch_size=6, shuffle=True, remainder="uneven")
    first = values(itertools.islice(iter(loader), len(loader)))
    loader.set_epoch(0)
    assert loader.state_dict()["epoch"] == 0
    assert values(loader) == first
