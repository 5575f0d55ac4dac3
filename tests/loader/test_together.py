"""What changes the shares, the order and the world, together: each sample still comes once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import Plan


def test_what_is_left_is_dealt_by_its_own_costs():
    costs = np.random.default_rng(0).lognormal(0, 2, 90)
    rest = np.delete(np.arange(90), np.arange(0, 90, 4))
    options = {"global_batch_size": 12, "world_size": 3, "remainder": "uneven"}
    plan = Plan(90, exclude=np.arange(0, 90, 4), balance=costs, **options)
    alone = Plan(len(rest), balance=costs[rest], **options)
    for rank in range(3):
        steps = range(alone.num_steps)
        found = zip(plan.batches(0, steps, rank), alone.batches(0, steps, rank), strict=True)
        for (ids, _), (places, _) in found:
            assert ids.tolist() == rest[places].tolist()


@given(st.data())
def test_dealt_shares_of_what_is_left_have_each_sample_once(data):
    count = data.draw(st.integers(1, 60))
    size = data.draw(st.integers(1, 24))
    world_size = data.draw(st.integers(1, size))
    left_out = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    start = data.draw(st.integers(0, count))
    plan = Plan(
        count,
        global_batch_size=size,
        world_size=world_size,
        shuffle="full",
        remainder="uneven",
        exclude=np.array(sorted(left_out), np.int64),
        balance=np.random.default_rng(0).random(count) if data.draw(st.booleans()) else None,
        start=start,
    )
    steps = range(plan.num_steps)
    if not steps:
        return
    ranks = [list(plan.batches(0, steps, rank)) for rank in range(world_size)]
    expected = [i for i in plan.ids(0, np.arange(start, count)).tolist() if i not in left_out]
    together = [
        sorted(i for rank in ranks for i, valid in zip(*rank[step], strict=True) if valid)
        for step in steps
    ]
    assert together == [sorted(expected[at : at + size]) for at in range(0, len(expected), size)]
    for step in steps:
        rows = [len(rank[step][0]) for rank in ranks]
        assert max(rows) - min(rows) <= 1


@pytest.mark.extension
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_regrouped_run_skips_and_leaves_out_on_purpose(executor):
    ids = np.arange(100)
    dataset = sw.wrap(ids.tolist())
    bad = [3, 40, 77]

    def make(rank, world_size):
        return sw.DataLoader(
            dataset,
            global_batch_size=10,
            shuffle=True,
            remainder="uneven",
            rank=rank,
            world_size=world_size,
            exclude=bad,
            balance=np.arange(100) + 1.0,
            executor=executor,
            output="numpy",
        )

    loaders = [make(rank, 2) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    seen = [i for iterator in iterators for _ in range(2) for i in next(iterator)["value"].tolist()]
    for loader in loaders:
        loader.skip(1)
    # A third rank joins in the middle of the epoch.
    joined = make(2, 3)
    joined.load_state_dict(loaders[0].state_dict())
    for rank, loader in enumerate(loaders):
        loader.regroup(rank, 3)
    for iterator in [*iterators, iter(joined)]:
        seen += [i for batch in iterator for i in batch["value"].tolist()]
    order = [i for i in loaders[0].plan.ids(0, np.arange(100)).tolist() if i not in bad]
    assert sorted(seen) == sorted(order[:20] + order[30:])
    for loader in [*loaders, joined]:
        loader.close()
