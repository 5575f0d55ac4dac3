"""Samples that are left out on purpose: never given, the others once, the past as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import Plan, Remainder, WindowSampler
from shardwise.plan.left_out import Excluded
from tests.support.extensions import HAS_EXTENSIONS
from tests.support.properties import examples

REMAINDERS = st.sampled_from(["drop", "pad", "uneven"])
Make = Callable[[int, int, int, Remainder], Plan]


def _lengths(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(1, 100, n).astype(np.float64)


PLANS: dict[str, Make] = {
    "order": lambda n, b, w, r: Plan(n, batch_size=b, world_size=w, remainder=r),
    "full": lambda n, b, w, r: Plan(n, batch_size=b, world_size=w, remainder=r, shuffle="full"),
    "window": lambda n, b, w, r: Plan(
        n, batch_size=b, world_size=w, remainder=r, sampler=WindowSampler([n], window=4, lanes=7)
    ),
    "virtual": lambda n, b, w, r: Plan(
        n, batch_size=b, world_size=w, remainder=r, shuffle="full", epoch_size=n // 2 + 1
    ),
}
_OF_BUCKETS: dict[str, Make] = {
    "buckets": lambda n, b, w, r: Plan(
        n, batch_size=b, world_size=w, remainder=r, batch_by=sw.buckets(_lengths(n))
    ),
    "groups": lambda n, b, w, r: Plan(
        n, batch_size=b, world_size=w, remainder=r,
        batch_by=sw.buckets(_lengths(n), shape=np.arange(n) % 3),
    ),
    "budget": lambda n, b, w, r: Plan(
        n, world_size=w, remainder=r, shuffle="full", batch_by=sw.buckets(_lengths(n), budget=500.0)
    ),
}  # fmt: skip
PLANS |= _OF_BUCKETS if HAS_EXTENSIONS else {}


def given_at(plan: Plan, epoch: int, step: int) -> list[int]:
    """The valid positions of a step over all ranks."""
    blocks = [plan.positions(epoch, range(step, step + 1), r) for r in range(plan.world_size)]
    return [int(p) for positions, valid in blocks for p in positions[valid]]


@pytest.mark.parametrize("kind", PLANS)
@given(data=st.data(), n=st.integers(30, 200), remainder=REMAINDERS)
@settings(max_examples=examples(25))
def test_the_others_come_once_and_the_past_stays(
    kind: str, data: st.DataObject, n: int, remainder: Remainder
) -> None:
    batch, world = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    whole = PLANS[kind](n, batch, world, remainder)
    ids = np.unique(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n // 2)))
    first = data.draw(st.integers(0, 1))
    since = data.draw(st.integers(0, whole.num_samples))
    plan = whole.excluding(Excluded(ids.astype(np.int64), (first, since)))
    for epoch in range(3):
        rest = plan.resumed(since if epoch == first else 0, epoch=epoch)
        steps = [given_at(rest, epoch, step) for step in range(rest.num_steps)]
        found = [position for step in steps for position in step]
        left_out = rest.order.left_out(epoch).tolist()
        left = set(range(rest.start, rest.num_samples)) - set(left_out)
        assert len(found) == len(set(found))
        if remainder == "drop":
            assert left - set(found) == set(rest.last_positions(rest.num_dropped).tolist())
        else:
            assert set(found) == left
        if epoch >= first:
            assert not np.isin(plan.ids(epoch, np.array(found, dtype=np.int64)), ids).any()
        for step in range(1, rest.num_steps):
            resumed = rest.resumed(rest.position_after(step), epoch=epoch)
            assert sorted(given_at(resumed, epoch, 0)) == sorted(steps[step])
    before, after = whole.resumed(0, epoch=first), plan.resumed(0, epoch=first)
    for step in range(min(before.num_steps, after.num_steps)):
        if before.position_after(step + 1) > since:
            break
        assert given_at(before, first, step) == given_at(after, first, step)


def test_batches_stay_full_and_equal_on_all_ranks() -> None:
    plan = Plan(103, batch_size=4, world_size=3, shuffle="full", exclude=np.arange(0, 103, 5))
    assert plan.num_steps == 82 // 12
    rows = [plan.indices(0, step, r) for step in range(plan.num_steps) for r in range(3)]
    assert {len(ids) for ids in rows} == {4}


def test_a_list_that_leaves_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exclude= leaves out 98 samples .* of 100"):
        Plan(100, batch_size=4, shuffle="full", exclude=np.arange(98)).require_steps()


@pytest.mark.parametrize("ids", [[100], [-1], [3, 10**12]])
def test_the_ids_of_another_dataset_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="has 100 samples: is it the list of another dataset"):
        Plan(100, exclude=np.array(ids))
    with pytest.raises(TypeError, match="whole numbers"):
        Plan(100, exclude=np.array([0.5]))
