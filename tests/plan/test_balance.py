"""Balance: the rows of a global batch dealt by cost: the same batches, equal rows, equal work."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import FullSampler, Plan
from shardwise.plan.balance import deal_rows
from tests.plan.test_global_batch import batches_of, rows_of
from tests.support.properties import examples

# Packs of 128k tokens: documents of a lognormal length, most of the work is attention.
LENGTH, HIDDEN = 131_072, 4096


def pack_costs(num_documents: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(LENGTH / 40), 1.6, num_documents), 16, LENGTH)
    documents = sw.wrap(np.zeros(num_documents, np.int8))
    packs = sw.pack(documents, length=LENGTH, lengths=lengths.astype(int), progress=False)
    return packs.costs(hidden=HIDDEN)


def slowest(plan: Plan, costs: np.ndarray, num_steps: int) -> float:
    """The cost of the slowest rank over the mean of all, on average of some steps."""
    table = np.array(
        [
            [costs[ids].sum() for ids, _ in plan.batches(0, range(num_steps), rank)]
            for rank in range(plan.world_size)
        ]
    )
    return float((table.max(axis=0) / table.mean(axis=0)).mean())


@st.composite
def balanced(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """A plan, and the same without balance."""
    count, world_size = draw(st.integers(1, 200)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    costs = draw(
        st.sampled_from(
            [np.zeros(count), np.full(count, 2.5), rng.integers(0, 4, count),
             rng.lognormal(0, 2, count), 10.0 ** rng.integers(-200, 200, count)]
        )
    )  # fmt: skip
    size = draw(st.one_of(st.none(), st.integers(world_size, 60)))
    shuffle = draw(st.sampled_from([False, "full", "window"]))
    options: dict[str, Any] = {
        "world_size": world_size,
        "shuffle": shuffle,
        "remainder": draw(st.sampled_from(["drop", "pad", "uneven"])),
        "shard_sizes": [count // 3, count - count // 3] if shuffle == "window" else None,
        "start": draw(st.integers(0, count)),
        **({"batch_size": draw(st.integers(1, 9))} if size is None else
           {"global_batch_size": size}),
    }  # fmt: skip
    return Plan(count, balance=costs, **options), Plan(count, **options)


@given(balanced(), st.integers(0, 2))
@settings(max_examples=examples(100), deadline=None)
def test_global_batches_and_shares_are_those_without_balance(
    plans: tuple[Plan, Plan], epoch: int
) -> None:
    dealt, plain = plans
    assert batches_of(dealt, epoch) == batches_of(plain, epoch)
    for step in range(plain.num_steps):
        for ours, theirs in zip(
            rows_of(dealt, epoch, step), rows_of(plain, epoch, step), strict=True
        ):
            assert len(ours) == len(theirs)
    assert dealt.num_padded == plain.num_padded


@given(balanced(), st.integers(0, 20), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_resume_on_another_world_has_the_rest_once(
    plans: tuple[Plan, Plan], num_steps: int, world_size: int
) -> None:
    dealt, plain = plans
    if plain._base.fixed_size is not None:
        world_size = min(world_size, plain.global_batch_size)
    position = dealt.position_after(min(num_steps, dealt.num_steps))
    dealt, plain = (plan.divided(world_size).resumed(position) for plan in plans)
    assert batches_of(dealt, 0) == batches_of(plain, 0)


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.lists(st.floats(0, 1e300), min_size=40, max_size=40),
)
@example(24, 5, [1.0] * 40)
@settings(max_examples=examples(100), deadline=None)
def test_a_dealt_batch_is_within_one_row_of_the_mean(
    size: int, world_size: int, values: list[float]
) -> None:
    costs = np.array(values) / 1e3
    rows = deal_rows(lambda positions: costs[positions], np.array([0]), size, world_size)[0]
    assert np.array_equal(np.sort(rows), np.arange(size))
    if size % world_size == 0:
        loads = costs[rows.reshape(world_size, -1)].sum(axis=1)
        # Each round adds rows between its dearest and its cheapest to all: the differences of the
        # loads never exceed the dearest row.
        assert loads.max() - loads.min() <= costs[:size].max() * (1 + 1e-9)


@pytest.mark.parametrize(("world_size", "num_documents"), [(8, 8_000), (64, 16_000)])
@pytest.mark.extension
def test_the_slowest_rank_of_packs_is_within_5_percent_of_the_mean(
    world_size: int, num_documents: int
) -> None:
    costs = pack_costs(num_documents)
    options: dict[str, Any] = {"batch_size": 4, "world_size": world_size}
    plain = Plan(len(costs), sampler=FullSampler(len(costs), seed=1), **options)
    dealt = Plan(len(costs), sampler=FullSampler(len(costs), seed=1), balance=costs, **options)
    assert slowest(plain, costs, plain.num_steps) > 1.3
    assert slowest(dealt, costs, dealt.num_steps) <= 1.05
    uneven = Plan(len(costs), shuffle="full", balance=costs, global_batch_size=4 * world_size)
    assert slowest(uneven.divided(world_size - 1), costs, uneven.num_steps) <= 1.3


def test_a_step_is_the_same_whatever_block_of_steps_it_is_dealt_in() -> None:
    costs = np.random.default_rng(1).lognormal(0, 1, 3_000)
    plan = Plan(3_000, batch_size=4, world_size=6, shuffle="full", balance=costs)
    block = [ids.tolist() for ids, _ in plan.batches(1, range(plan.num_steps), 5)]
    alone = [
        plan.positions(1, range(step, step + 1), 5)[0].tolist() for step in range(plan.num_steps)
    ]
    assert [plan.ids(1, np.array(rows)).tolist() for rows in alone] == block
    copy = pickle.loads(pickle.dumps(plan))
    assert [copy.indices(1, step, 5).tolist() for step in range(9)] == block[:9]


@pytest.mark.parametrize(
    ("balance", "error", "message"),
    [
        (np.ones(9), ValueError, "balance has 9 costs, the dataset has 90 samples"),
        (np.ones((90, 2)), ValueError, "costs must be one number a sample"),
        ([*[1.0] * 89, -1.0], ValueError, "1 of 90 costs are negative.*sample 89"),
        ([*[1.0] * 89, np.nan], ValueError, "not finite"),
        (["1"] * 90, TypeError, "costs must be numbers"),
    ],
)
def test_costs_that_are_none_are_refused(balance: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Plan(90, batch_size=3, world_size=2, balance=balance)


@pytest.mark.extension
def test_balance_over_batches_that_the_order_cuts_is_refused() -> None:
    for by in (sw.buckets(None, shape=[0, 1] * 45), sw.buckets(np.ones(90), budget=4)):
        with pytest.raises(ValueError, match=r"leave one of them out; batch_by=sw\.buckets"):
            Plan(90, batch_by=by, balance=np.ones(90))


@pytest.mark.extension
def test_buckets_of_like_lengths_are_dealt_by_another_cost() -> None:
    rng = np.random.default_rng(0)
    lengths, costs = rng.integers(1, 50, 400), rng.lognormal(0, 1, 400)
    options: dict[str, Any] = {"batch_size": 5, "world_size": 4, "shuffle": "full"}
    plain = Plan(400, batch_by=sw.buckets(lengths), **options)
    dealt = Plan(400, batch_by=sw.buckets(lengths), balance=costs, **options)
    assert batches_of(dealt, 1) == batches_of(plain, 1)
    assert slowest(dealt, costs, 20) < slowest(plain, costs, 20)
