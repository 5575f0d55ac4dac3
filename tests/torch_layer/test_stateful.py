"""States in the middle of an epoch of torch's and of torchdata's loader, around each of our parts.

Loaders are read to their end, since torch's workers complain when they are left in the middle.
"""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.torch import BatchSampler, DistributedSampler, IterableDataset, StatefulDataLoader
from tests.support.trainers import needs

# More workers than cores is what some of these tests are about.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # torchdata 0.11 asks torch for what newer releases of it call otherwise.
    pytest.mark.filterwarnings("ignore:'pin_memory':"),
]

NUM_SAMPLES, BATCH_SIZE, WORLD_SIZE = 53, 4, 2
PARTS = ("iterable", "batch sampler", "sampler")
RANK = {"rank": 1, "world_size": WORLD_SIZE}


def make_loader(kind, part, num_workers, **options):
    """A loader of this rank of two around one of the three parts, and that part."""
    data = sw.wrap(range(NUM_SAMPLES))
    options = {"num_workers": num_workers, **options}
    if num_workers:
        options.setdefault("multiprocessing_context", "fork")
    if part == "iterable":
        it = IterableDataset(data, batch_size=BATCH_SIZE, shuffle="full", remainder="pad", **RANK)
        return kind(it, batch_size=None, **options), it
    if part == "batch sampler":
        batches = BatchSampler(data, BATCH_SIZE, shuffle="full", remainder="pad", **RANK)
        return kind(data, batch_sampler=batches, **options), batches
    indices = DistributedSampler(data, num_replicas=WORLD_SIZE, rank=1, shuffle="full")
    return kind(data, batch_size=BATCH_SIZE, sampler=indices, **options), indices


def values(loader):
    return [batch["value"].tolist() for batch in loader]


def values_and_state_after(loader, num_batches):
    found, state = [], None
    for number, batch in enumerate(loader, start=1):
        found.append(batch["value"].tolist())
        if number == num_batches:
            state = loader.state_dict()
    return found, state


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3)])
def test_any_number_of_workers_takes_up_the_state(part, before, after):
    loader, _ = make_loader(StatefulDataLoader, part, before)
    loader.set_epoch(3)
    whole, state = values_and_state_after(loader, 3)
    assert loader.epoch == 4, "the next epoch is next, as in sw.DataLoader"
    following = values(loader)
    assert following != whole

    again, _ = make_loader(StatefulDataLoader, part, after, persistent_workers=after > 0)
    again.load_state_dict(state)
    again.set_epoch(3)  # as a program's loop over epochs does
    assert len(again) == len(loader)
    assert values(again) == whole[3:]
    assert values(again) == following


def test_a_loader_without_one_of_the_parts_is_refused():
    with pytest.raises(TypeError, match=r"give a shardwise\.torch\.IterableDataset"):
        StatefulDataLoader([1, 2, 3])


@needs("torchdata")
def test_torchdatas_state_of_an_iterable_is_taken_up_twice_over():
    from torchdata.stateful_dataloader import StatefulDataLoader as Torchdatas

    loader, it = make_loader(Torchdatas, "iterable", 2)
    it.set_epoch(1)
    whole, state = values_and_state_after(loader, 3)
    second, _ = make_loader(Torchdatas, "iterable", 2)
    second.load_state_dict(state)
    rest, state = values_and_state_after(second, 2)
    assert rest == whole[3:]
    third, _ = make_loader(Torchdatas, "iterable", 2)
    third.load_state_dict(state)
    assert values(third) == whole[5:]
