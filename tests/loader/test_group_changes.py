"""A process group that changes under a running iterator ends it, in every entry point."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.base.errors import RankError

DATA = [{"x": i} for i in range(60)]


@pytest.fixture
def join():
    """Makes this process a rank of another group: one whose collectives do nothing."""

    def become(rank, world_size):
        leave()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    def leave():
        if dist.is_initialized():
            dist.destroy_process_group()

    yield become
    leave()


def opened(kind):
    if kind == "DataLoader":
        return sw.DataLoader(DATA, 2, shuffle=True, num_threads=0)
    if kind == "explicit":
        ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        return sw.DataLoader(DATA, 2, shuffle=True, num_threads=0, **ranks)
    if kind == "group":
        return sw.DataLoader(DATA, 2, shuffle=True, num_threads=0, group=dist.group.WORLD)
    if kind == "IterableDataset":
        it = sw.torch.IterableDataset(sw.wrap(DATA), batch_size=2, shuffle=True)
        return DataLoader(it, batch_size=None)
    if kind == "workers":
        it = sw.torch.IterableDataset(sw.wrap(DATA), batch_size=2, shuffle=True)
        return sw.torch.StatefulDataLoader(it, batch_size=None, num_workers=1)
    if kind == "BatchSampler":
        return DataLoader(DATA, batch_sampler=sw.torch.BatchSampler(DATA, 2, shuffle=True))
    return DataLoader(DATA, 2, sampler=sw.torch.DistributedSampler(DATA))


@pytest.mark.parametrize(
    "kind",
    [
        *("DataLoader", "explicit", "group", "IterableDataset", "workers"),
        *("BatchSampler", "DistributedSampler"),
    ],
)
@pytest.mark.parametrize("after", [(0, 2), (1, 3)])
def test_the_next_batch_after_a_change_is_refused(join, kind, after):
    join(0, 3)
    batches = iter(opened(kind))
    next(batches)
    join(*after)
    with pytest.raises(RankError, match=rf"rank {after[0]} (of|and world_size=) ?{after[1]}"):
        next(batches)


@pytest.mark.parametrize("kind", ["DataLoader", "BatchSampler", "IterableDataset"])
def test_a_new_group_of_the_same_ranks_and_no_group_at_all_change_nothing(join, kind):
    join(1, 3)
    batches = iter(opened(kind))
    next(batches)
    join(1, 3)
    next(batches)
    dist.destroy_process_group()
    assert next(batches)


def test_a_pass_begun_after_the_change_goes_on_at_the_position(join):
    seen = []
    for rank in range(3):
        join(rank, 3)
        loader = sw.DataLoader(DATA, 2, shuffle=True, num_threads=0, output="numpy")
        batches = iter(loader)
        for _ in range(4):
            seen += next(batches)["x"].tolist()
        if rank == 2:
            break
        join(rank, 2)
        with pytest.raises(RankError):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        seen += [i for batch in loader for i in batch["x"].tolist()]
    assert sorted(seen) == list(range(60))
