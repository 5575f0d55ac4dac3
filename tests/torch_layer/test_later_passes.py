"""Passes after a resumed one are whole: however the resumed one was ended, named or not."""

from __future__ import annotations

import functools
import itertools
import traceback
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.torch import DistributedSampler, IterableDataset, StatefulDataLoader
from shardwise.torch.shared_cursor import SharedCursor
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
    for (number, part), name, end in itertools.product(enumerate(PARTS), names, ends):
        is_rest = (name, end) != (names[number % len(names)], ends[number % len(ends)])
        called = f"{name}-{'to the end' if end else 'by len'}-{part}"
        chosen.append(pytest.param(part, 0, name, end, id=f"0-{called}"))
        marks = [pytest.mark.long] if is_rest else []
        chosen.append(pytest.param(part, 2, name, end, id=f"2-{called}", marks=marks))
    return chosen


@functools.cache
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


@pytest.mark.parametrize(
    ("part", "num_workers", "named", "to_the_end"), ways([True, False], [True, False])
)
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
    ("part", "num_workers", "named", "to_the_end"), ways(["loader", "keeper", None], [True, False])
)
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


def resumed_and_left(num_taken, **options):
    """A dataset of 12 steps that was resumed after 4 and left some further on, and its loader."""
    it = IterableDataset(sw.wrap(range(24)), batch_size=2, rank=0, world_size=1)
    it.load_state_dict(it.state_dict(num_batches=4))
    loader = DataLoader(it, batch_size=None, num_workers=2, **options)
    first = [i for batch in itertools.islice(iter(loader), num_taken) for i in batch["value"]]
    assert first == list(range(8, 8 + 2 * num_taken))
    return it, loader


def refuse_a_pass(loader):
    with pytest.raises(
        sw.StateError, match="the pass from position 8 of epoch 0 on was left"
    ) as refused:
        values(loader)
    # What torch raises refers to itself and to its iterator, which, if it is collected as such a
    # ring, waits 5 s for each worker.
    traceback.clear_frames(refused.tb)
    del refused


def samples(loader):
    return [i for batch in values(loader) for i in batch]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["anew", "alive"])
def test_workers_refuse_a_second_pass_from_where_a_state_stood(options):
    it, loader = resumed_and_left(1, **options)
    state = it.state_dict(num_batches=0)
    assert state["position"] == 8
    for _ in range(2):
        refuse_a_pass(loader)
    it.load_state_dict(state)
    assert samples(loader) == list(range(8, 24))
    assert samples(loader) == samples(loader) == list(range(24))
    it.load_state_dict(state)
    next(iter(loader))
    it.set_epoch(1)
    assert samples(loader) == list(range(24))


def test_a_pass_that_was_read_ahead_to_its_end_is_never_begun_in_two_places(monkeypatch):
    was_read, mark_done = SharedCursor.was_read, SharedCursor.mark_done
    context = torch.multiprocessing.get_context("fork")
    is_left, is_decided, is_done = (context.Event() for _ in range(3))

    def decided_too_early(self, place):
        found = was_read(self, place)
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 0 and is_left.is_set():
            is_decided.set()
            assert is_done.wait(60)
        return found

    def done_too_late(self, run, place):
        if run.number == 1 and not is_done.is_set():
            assert is_decided.wait(60)
            mark_done(self, run, place)
            is_done.set()
        else:
            mark_done(self, run, place)

    monkeypatch.setattr(SharedCursor, "was_read", decided_too_early)
    monkeypatch.setattr(SharedCursor, "mark_done", done_too_late)
    # All that is left is asked for ahead once five of its eight batches were taken.
    _, loader = resumed_and_left(5, persistent_workers=True, multiprocessing_context="fork")
    is_left.set()
    refuse_a_pass(loader)


@needs("torchdata")
@pytest.mark.parametrize(
    ("num_workers", "persistent", "named"),
    [
        pytest.param(0, False, True, id="0-False-set_epoch"),
        pytest.param(0, False, False, id="0-False-no set_epoch"),
        pytest.param(2, False, True, id="2-False-set_epoch", marks=pytest.mark.long),
        pytest.param(2, False, False, id="2-False-no set_epoch"),
        pytest.param(2, True, True, id="2-True-set_epoch"),
        pytest.param(2, True, False, id="2-True-no set_epoch", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_after_a_resume_torchdatas_loader_reads_whole_epochs(part, num_workers, persistent, named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader as Torchdata

    whole = epochs_of(part)
    options = {"persistent_workers": persistent}
    first, _ = make_loader(Torchdata, part, num_workers, **options)
    for number, _ in enumerate(first, start=1):
        if number == NUM_TAKEN:
            state = first.state_dict()
    second, keeper = make_loader(Torchdata, part, num_workers, **options)
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
