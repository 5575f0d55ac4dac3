"""Plans of data that grew: each epoch has its data once, wherever and for whomever they grow."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import StateError
from shardwise.extensions.living.growth import GrowingPlan, grow
from shardwise.plan import DataOrder, LoaderState, Plan
from shardwise.sources.manifest import Manifest, Shard
from tests.support.properties import examples

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6)


class Data:
    def __init__(self, sizes: list[int]) -> None:
        self.manifest = Manifest("test", [Shard(f"{n}", size, 1) for n, size in enumerate(sizes)])
        self.fingerprint = self.manifest.fingerprint


def plan(sizes: list[int], **options: Any) -> Plan:
    shards = {"shard_sizes": sizes} if options["shuffle"] == "window" else {}
    return Plan(sum(sizes), **shards, **options)


def state_of(old: list[int], whole: Plan, epoch: int, step: int) -> LoaderState:
    order = DataOrder(Data(old).fingerprint, whole.sampler, whole.order.excluded)
    return order.state(epoch, whole.resumed(0, epoch=epoch).position_after(step))


def ids_of(part: Plan, epoch: int, steps: range | None = None) -> list[int]:
    """The valid ids of all ranks."""
    found = []
    for step in range(part.num_steps) if steps is None else steps:
        for rank in range(part.world_size):
            found += part.indices(epoch, step, rank)[part.valid(epoch, step, rank)].tolist()
    return found


@settings(deadline=None, max_examples=examples(80))
@given(data=st.data(), old=SIZES, new=SIZES, shuffle=st.sampled_from([False, "full", "window"]))
def test_each_epoch_has_its_samples_once_wherever_the_data_grow(
    data: st.DataObject, old: list[int], new: list[int], shuffle: Any
) -> None:
    old = [max(1, old[0]), *old[1:]]
    epoch, worlds = data.draw(st.integers(0, 3)), st.tuples(st.integers(1, 5), st.integers(1, 5))
    options = {"shuffle": shuffle, "seed": data.draw(st.integers(-3, 3)) if shuffle else 0}
    (batch, world), (other_batch, other_world) = data.draw(worlds), data.draw(worlds)
    left_out = sorted(data.draw(st.sets(st.integers(0, sum(old + new) - 1), max_size=4)))
    before_list = np.array([i for i in left_out if i < sum(old)], np.int64)
    if len(before_list) == sum(old):
        return
    options["remainder"] = "pad"
    exclude = data.draw(st.booleans())
    more = {"exclude": before_list} if exclude else {}
    before = plan(old, **options, **more, batch_size=batch, world_size=world)
    step = data.draw(st.integers(0, before.resumed(0, epoch=epoch).num_steps))
    state = state_of(old, before, epoch, step)
    more = {"exclude": np.array(left_out, np.int64)} if exclude else {}
    whole = plan(old + new, **options, **more, batch_size=other_batch, world_size=other_world)
    after, loaded = grow(Data(old + new), whole, state)
    assert (loaded.epoch, loaded.position) == (epoch, state.position)

    first = ids_of(before.resumed(0, epoch=epoch), epoch, range(step))
    rest = ids_of(after.resumed(state.position, epoch=epoch), epoch)
    size, kept = sum(old) if step else sum(old + new), set(left_out if exclude else ())
    assert sorted(first + rest) == [i for i in range(size) if i not in kept]
    next_epoch = after.divided(world).resumed(0, epoch=epoch + 1)
    assert sorted(ids_of(next_epoch, epoch + 1)) == [
        i for i in range(sum(old + new)) if i not in kept
    ]


def test_questions_and_states_of_an_epoch_are_of_its_own_data() -> None:
    before = plan([10, 5], shuffle="window", seed=2, batch_size=3)
    whole = plan([10, 5, 7], shuffle="window", seed=2, batch_size=3)
    after, _ = grow(Data([10, 5, 7]), whole, state_of([10, 5], before, 4, 2))
    for world_size in (1, 2):
        divided, old, new = (each.divided(world_size) for each in (after, before, whole))
        assert isinstance(divided, GrowingPlan)
        for epoch, expected in ((3, old), (4, old), (5, new)):
            got = divided.resumed(0, epoch=epoch)
            assert got.sampler.spec() == expected.sampler.spec()
            assert bool(got.fingerprint) == (epoch < 5)
            assert got.num_steps == expected.resumed(0, epoch=epoch).num_steps
            for step in range(got.num_steps):
                ids = expected.indices(epoch, step, 0)
                assert divided.indices(epoch, step, 0).tolist() == ids.tolist()
            assert divided.of_epoch(epoch).sampler.spec() == expected.sampler.spec()


@pytest.mark.parametrize("change", [
    {"seed": 9}, {"shuffle": "full"}, {"epoch_size": 8},
], ids=str)  # fmt: skip
def test_another_order_can_not_grow(change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"shuffle": "window", "seed": 2, "batch_size": 3}
    state = state_of([10, 5], plan([10, 5], **options), 0, 2)
    with pytest.raises(StateError, match="data grow in storage order, or by"):
        grow(Data([10, 5, 7]), plan([10, 5, 7], **{**options, **change}), state)


def test_costs_of_balance_are_those_of_all_samples() -> None:
    costs = np.array(list(accumulate(range(22))), np.float64) + 1
    options: dict[str, Any] = {"shuffle": "full", "batch_size": 3, "world_size": 2}
    before = plan([15], **options, balance=costs[:15])
    state = state_of([15], before, 0, 1)
    after, _ = grow(Data([15, 7]), plan([15, 7], **options, balance=costs), state)
    rest, expected = (each.resumed(6, epoch=0) for each in (after, before))
    assert [ids_of(rest, 0)] == [ids_of(expected, 0)]
