"""A global batch of a fixed size: the same samples for any number of ranks, in even shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import Partition, Plan
from tests.support.extensions import HAS_EXTENSIONS
from tests.support.properties import examples

REMAINDERS = st.sampled_from(["drop", "pad", "uneven"])


def rows_of(plan: Plan, epoch: int, step: int) -> list[np.ndarray]:
    return [plan.indices(epoch, step, rank) for rank in range(plan.world_size)]


def batches_of(plan: Plan, epoch: int) -> list[list[int]]:
    """The valid samples of each global batch, sorted."""
    batches = []
    for step in range(plan.num_steps):
        ranks = range(plan.world_size)
        ids = [plan.indices(epoch, step, r)[plan.valid(epoch, step, r)] for r in ranks]
        batches.append(sorted(np.concatenate(ids).tolist()))
    return batches


def order(kind: str, count: int, size: int) -> dict[str, Any]:
    """Options of a plan of each kind of order."""
    if kind == "buckets":
        lengths = np.random.default_rng(0).integers(1, 50, count)
        return {"shuffle": "full", "batch_by": sw.buckets(lengths, shape=np.arange(count) % 3)}
    sizes = [count // 3, count - count // 3] if kind == "window" else None
    return {"shuffle": False if kind == "storage" else kind, "shard_sizes": sizes}


KINDS = ["storage", "full", "window", *["buckets"] * HAS_EXTENSIONS]


def test_24_samples_over_5_ranks_are_5_5_5_5_and_4() -> None:
    plan = Plan(240, global_batch_size=24, world_size=5)
    assert [len(rows) for rows in rows_of(plan, 0, 0)] == [5, 5, 5, 5, 4]
    assert np.concatenate(rows_of(plan, 0, 3)).tolist() == list(range(72, 96))
    assert (plan.num_steps, plan.batch_size, plan.global_batch_size) == (10, 5, 24)
    assert plan.divided(24).batch_size == 1
    assert plan.divided(5) is plan


@given(
    st.sampled_from(KINDS), st.integers(1, 150), st.integers(1, 40), REMAINDERS, st.integers(0, 2)
)
@example(KINDS[-1], 100, 24, "pad", 0)
@settings(max_examples=examples(30), deadline=None)
def test_global_batches_are_those_of_one_rank_for_any_world_size(
    kind: str, count: int, size: int, remainder: Any, epoch: int
) -> None:
    options = order(kind, count, size)
    one = Plan(count, global_batch_size=size, remainder=remainder, **options)
    one = one.resumed(0, epoch=epoch)
    expected = batches_of(one, epoch)
    for world_size in {2, 3, 5, 7, size} & set(range(1, size + 1)):
        plan = one.divided(world_size)
        assert batches_of(plan, epoch) == expected
        assert (plan.num_dropped, plan.num_padded) == (one.num_dropped, one.num_padded)
        for step in range(plan.num_steps):
            shares = [len(rows) for rows in rows_of(plan, epoch, step)]
            assert max(shares) - min(shares) <= 1
            assert max(shares) <= plan.batch_size
            assert remainder != "pad" or sum(shares) == size


@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(1, 24), st.integers(0, 4)), max_size=5),
    REMAINDERS,
)
@settings(max_examples=examples(20), deadline=None)
def test_a_chain_of_worlds_continues_at_the_same_global_step(
    kind: str, chain: list[tuple[int, int]], remainder: Any
) -> None:
    one = Plan(233, global_batch_size=24, remainder=remainder, **order(kind, 233, 24))
    expected, got, position = batches_of(one, 0), [], 0
    for world_size, num_steps in [*chain, (5, 100)]:
        state = {"order": one.sampler.spec()}
        plan = one.divided(world_size).in_order_of(state).resumed(position)
        taken = batches_of(plan, 0)[:num_steps]
        got += taken
        position = plan.position_after(len(taken))
    assert got == expected


@pytest.mark.extension
def test_batches_of_a_mixture_are_of_one_dataset_for_any_world_size() -> None:
    parts = {name: (sw.wrap(range(120)), 1.0) for name in "ab"}
    sampler = sw.mix(parts, per="batch", until=240).sampler
    made = [Plan(240, global_batch_size=24, world_size=w, sampler=sampler) for w in (1, 3, 5, 24)]
    batches = [batches_of(plan, 0) for plan in made]
    assert batches[0] == batches[1] == batches[2] == batches[3]
    assert all(len({i // 120 for i in batch}) == 1 for batch in batches[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 8}, r"batch_size=8 and global_batch_size=24.*leave one of them out"),
        ({"batch_size": 64}, "batch_size=64 and global_batch_size=24.*leave one of them out"),
        ({"world_size": 25}, "global_batch_size=24 with world_size=25: some ranks would have no"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(90, **{"global_batch_size": 24, **options})


@pytest.mark.extension
@pytest.mark.parametrize("size", [{"batch_size": 8}, {"budget": 8}])
def test_sizes_of_buckets_and_a_global_batch_are_refused(size: Any) -> None:
    by = sw.buckets(np.ones(90), **size)
    with pytest.raises(ValueError, match=r"batch_size= or budget=.*leave one"):
        Plan(90, global_batch_size=24, batch_by=by)


@pytest.mark.parametrize("size", [0, -3, 2**48 + 1])
def test_a_global_batch_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"global_batch_size={size}"):
        Plan(90, global_batch_size=size)


def test_too_few_samples_are_an_error_that_names_the_global_batch() -> None:
    with pytest.raises(ValueError, match="one global batch of global_batch_size=24, and remainder"):
        Plan(9, global_batch_size=24, world_size=5).require_steps()


def test_a_partition_with_a_fixed_size_ignores_the_batch_size_it_gets() -> None:
    assert Partition(100, 1, 5, fixed_size=24) == Partition(100, 7, 5, fixed_size=24)
