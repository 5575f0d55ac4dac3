"""Who holds a block: as the plan reads it, the same for all, within the room of each disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.share.placement import (
    holders,
    middle_samples,
    places_of,
    reading_ranks,
)
from shardwise.plan import Plan


class NoInverse:
    """A shuffle that can't be inverted."""

    def __init__(self, count: int) -> None:
        self.num_samples, self._order = count, np.random.default_rng(0).permutation(count)

    def indices(self, epoch, positions):
        return (self._order[positions] + epoch) % self.num_samples

    def spec(self):
        return {"sampler": "none"}


@pytest.mark.parametrize("world_size", [1, 3, 8, 10])
@pytest.mark.parametrize("lanes", [1, 6, 8])
@pytest.mark.parametrize("start", [0, 37])
def test_the_rank_that_reads_a_position_is_found(world_size, lanes, start):
    sampler = sw.WindowSampler([100] * 12, seed=1, lanes=lanes, window=5)
    plan = Plan(1200, batch_size=4, world_size=world_size, sampler=sampler, start=start)
    right = total = 0
    for rank in range(world_size):
        positions, _ = plan.positions(0, range(plan.num_steps), rank)
        found = reading_ranks(plan, 0, positions)
        assert np.abs(found - rank).max() <= 1
        right, total = right + int((found == rank).sum()), total + len(found)
    # Lanes that two ranks share are told apart roughly.
    assert right >= (0.6 if lanes > 1 else 1) * total


@given(st.data())
def test_without_lanes_the_rank_is_exact_in_each_batch(data):
    count, world_size = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 7))
    size = data.draw(st.integers(world_size, 40))
    start = data.draw(st.integers(0, count - 1))
    plan = Plan(count, global_batch_size=size, world_size=world_size, shuffle="full", seed=1,
                remainder="uneven", start=start)  # fmt: skip
    for rank in range(world_size):
        positions, _ = plan.positions(0, range(plan.num_steps), rank)
        assert (reading_ranks(plan, 0, positions) == rank).all()


@pytest.mark.parametrize("kind", ["full", "window", "none"])
def test_places_are_those_of_the_order(kind):
    count = 300
    more = {"sampler": NoInverse(count)} if kind == "none" else {"shuffle": kind, "seed": 3}
    if kind == "window":
        more["shard_sizes"] = [60] * 5
    plan = Plan(count, batch_size=4, world_size=2, **more)
    ids = np.array([7, 299, 7, 0, 155])
    places = places_of(plan, 2, ids)
    assert plan.sampler.indices(2, places).tolist() == ids.tolist()


@given(st.data())
def test_no_disk_holds_more_than_it_has_room_for_where_others_have_some(data):
    num_nodes = data.draw(st.integers(1, 5))
    count = data.draw(st.integers(1, 60))
    rooms = data.draw(st.lists(st.integers(0, 40), min_size=num_nodes, max_size=num_nodes))
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    readers = draw.integers(0, num_nodes, count)
    following = draw.permutation(count)
    held = holders(readers, following, rooms)
    kept = np.bincount(held, minlength=num_nodes)
    over = np.maximum(0, kept - rooms).sum()
    assert over == max(0, count - sum(rooms)) or over == 0
    fits = np.bincount(readers, minlength=num_nodes) <= rooms
    assert not (held != readers)[fits[readers]].any()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 5), st.booleans())
def test_each_block_of_a_shard_with_samples_has_a_middle_sample(sizes, blocks, is_subset):
    counts = np.full(len(sizes), blocks)
    total = sum(sizes)
    indices = np.arange(0, total, 2) if is_subset and total else None
    shards, numbers, ids = middle_samples(np.array(sizes), counts, indices)
    expected = [(shard, n) for shard, size in enumerate(sizes) if size for n in range(blocks)]
    assert [*zip(shards.tolist(), numbers.tolist(), strict=True)] == expected
    assert ((ids >= 0) & (ids < (total if indices is None else len(indices)))).all()
