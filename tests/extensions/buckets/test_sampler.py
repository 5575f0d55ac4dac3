"""Buckets: each sample once, equal steps, a cap that holds, and no world size moves a batch."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import Plan
from shardwise.testing import check_sampler
from tests.support.properties import examples


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Budgets below most lengths warn in each example."""
    caplog.set_level(logging.ERROR, "shardwise")


def durations(count: int, seed: int = 0) -> np.ndarray:
    """Log-normal seconds, as of speech."""
    drawn = np.random.default_rng(seed).lognormal(np.log(8), 0.6, count)
    return np.clip(drawn, 0.5, 35)


def batches_of(plan: Plan, epoch: int = 0) -> list[list[np.ndarray]]:
    """The valid ids of each step and rank, of a plan and one of its epochs."""
    plan = plan.resumed(plan.start, epoch=epoch)
    if not plan.num_steps:
        return []
    steps = range(plan.num_steps)
    ranks = [plan.batches(epoch, steps, rank) for rank in range(plan.world_size)]
    return [[ids[valid] for ids, valid in batches] for batches in zip(*ranks, strict=True)]


def flat(steps: list[list[np.ndarray]]) -> np.ndarray:
    return np.concatenate([ids for step in steps for ids in step] + [np.empty(0, np.int64)])


def cost(lengths: np.ndarray, ids: np.ndarray) -> float:
    return len(ids) * float(lengths[ids].max()) if len(ids) else 0.0


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, np.ndarray, np.ndarray | None, float | None]:
    """Small plans with all corners: `(plan, lengths, groups, budget)`."""
    count = draw(st.integers(1, 120))
    kind = draw(st.sampled_from(["equal", "whole", "real", "wide"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = {
        "equal": lambda: np.full(count, 3.0),
        "whole": lambda: rng.integers(1, 9, count).astype(float),
        "real": lambda: rng.lognormal(1, 1, count),
        "wide": lambda: 10.0 ** rng.integers(-3, 4, count),
    }[kind]()
    groups = rng.integers(0, draw(st.integers(1, 5)), count) if draw(st.booleans()) else None
    budget = draw(st.one_of(st.none(), st.sampled_from([0.5, 7.0, 40.0, 1e5])))
    shuffle = draw(st.sampled_from([False, "full", "window"]))
    plan = Plan(
        count,
        batch_size=64 if budget else draw(st.integers(1, 20)),
        world_size=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 9)),
        shuffle=shuffle,
        remainder=draw(st.sampled_from(["drop", "pad", "uneven"])),
        shard_sizes=[count // 3, count - count // 3] if shuffle == "window" else None,
        epoch_size=draw(st.sampled_from([None, count + 7])) if groups is None else None,
        start=draw(st.integers(0, count)),
        batch_by=sw.buckets(
            lengths, budget=budget, window=draw(st.sampled_from([1, 16, 100])), shape=groups
        ),
    )
    return plan, lengths, groups, budget


@given(plans(), st.integers(0, 3))
@settings(max_examples=examples(100), deadline=None)
def test_each_position_comes_once_in_equal_steps_or_is_counted(made, epoch) -> None:
    plan, lengths, groups, budget = made
    plan = plan.resumed(plan.start, epoch=epoch)
    order = plan.sampler.indices(epoch, np.arange(plan.num_samples))
    steps = batches_of(plan, epoch)
    got = flat(steps)
    assert len(got) + plan.num_dropped == plan.num_samples - plan.start
    left = order[plan.start :]
    if plan.remainder == "drop":
        counts = np.bincount(left, minlength=len(lengths)) - np.bincount(
            got, minlength=len(lengths)
        )
        assert (counts >= 0).all()
    else:
        assert np.array_equal(np.sort(got), np.sort(left))
        assert plan.num_dropped == 0
    padded = 0
    for step, ranks in enumerate(steps):
        for rank, ids in enumerate(ranks):
            rows = plan.indices(epoch, step, rank)
            padded += len(rows) - len(ids)
            assert len(rows) <= plan.batch_size
            assert budget is not None or plan.remainder != "pad" or len(rows) == plan.batch_size
            if groups is not None:
                assert len(set(groups[rows].tolist())) <= 1
            if budget is not None and len(rows) > 1:
                assert cost(lengths, rows) <= budget
    assert padded == plan.num_padded
    if groups is not None and budget is None:
        for ranks in steps:
            assert len(set(groups[np.concatenate(ranks)].tolist())) <= 1, "a step of two groups"


@given(plans(), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=4))
@settings(max_examples=examples(60), deadline=None)
@example(
    (Plan(90, batch_size=4, world_size=2, batch_by=sw.buckets(np.ones(90), shape=[0, 1] * 45),
          remainder="uneven"), np.ones(90), None, None),
    [(3, 2), (1, 5)],
)  # fmt: skip
def test_a_chain_of_resumes_over_other_worlds_has_each_sample_once(made, chain) -> None:
    """Each run takes some steps; the next one has another world size and goes on there."""
    plan = made[0].resumed(0)
    order = plan.sampler.indices(0, np.arange(plan.num_samples))
    got, position = [], 0
    state = {"order": plan.sampler.spec()}
    for world_size, num_steps in [*chain, (plan.world_size, 10**6)]:
        rest = plan.divided(world_size).in_order_of(state).resumed(position)
        assert rest.sampler.spec() == plan.sampler.spec()
        steps = batches_of(rest)[:num_steps]
        got.append(flat(steps))
        if len(steps) < rest.num_steps:
            position = rest.position_after(len(steps))
            continue
        rest_dropped = rest.num_dropped
        break
    ids = np.concatenate(got)
    assert len(ids) + rest_dropped == len(order)
    left = np.bincount(order, minlength=128) - np.bincount(ids, minlength=128)
    assert (left >= 0).all()
    assert left.sum() == rest_dropped


@pytest.mark.parametrize("shuffle", [False, "full"])
@pytest.mark.parametrize("groups", [None, np.arange(3000) % 3])
def test_a_budgets_batches_are_the_same_for_every_world_size(shuffle, groups) -> None:
    by = sw.buckets(durations(3000), budget=120, window=1000, shape=groups)
    runs = {}
    for world_size in (1, 2, 3, 4, 6, 8):
        plan = Plan(3000, world_size=world_size, shuffle=shuffle, batch_by=by)
        runs[world_size] = [tuple(ids) for step in batches_of(plan) for ids in step]
    for world_size, batches in runs.items():
        assert len(runs[1]) - len(batches) < world_size
        assert batches == runs[1][: len(batches)]


@pytest.mark.parametrize("groups", [None, np.arange(3000) % 3])
def test_global_batches_of_one_size_are_the_same_for_every_world_size(groups) -> None:
    by = sw.buckets(durations(3000), window=1000, shape=groups)
    alone, *others = (
        batches_of(
            Plan(3000, batch_size=48 // w, world_size=w, shuffle="full", seed=3, batch_by=by)
        )
        for w in (1, 2, 3, 4, 8, 16)
    )
    for steps in others:
        assert [np.concatenate(ranks).tolist() for ranks in steps] == [
            ranks[0].tolist() for ranks in alone
        ]


def test_padding_is_little_and_ranks_cost_alike() -> None:
    lengths = durations(60_000)
    for by, most in [
        (sw.buckets(lengths, batch_size=32), 0.05),
        (sw.buckets(lengths, budget=200), 0.01),
    ]:
        steps = batches_of(Plan(60_000, world_size=4, shuffle="full", batch_by=by))
        costs = np.array([[cost(lengths, ids) for ids in ranks] for ranks in steps])
        assert 1 - lengths[flat(steps)].sum() / costs.sum() <= most
        assert (costs.max(1) <= 1.25 * costs.min(1)).mean() >= 0.9
        if by.budget is not None:
            assert costs.max() <= 200


@pytest.mark.parametrize("window", [500, 2000])
def test_batches_come_in_another_order_and_with_other_neighbours_each_epoch(window) -> None:
    lengths = durations(2000)
    for by in (sw.buckets(lengths, window=window), sw.buckets(lengths, window=window, budget=100)):
        plan = Plan(2000, batch_size=64, shuffle="full", batch_by=by)
        epochs = [[tuple(ids) for (ids,) in batches_of(plan, epoch)] for epoch in (0, 1)]
        # A few of the longest samples may happen to come together again.
        sets = [{frozenset(ids) for ids in batches if len(ids) > 8} for batches in epochs]
        assert len(sets[0]) > 20
        assert len(sets[0] & sets[1]) < 5
        # Under a budget 8 neighbours in length stay together, for up to 8 ranks.
        steps = epochs[0] if by.budget is None else epochs[0][::8]
        first = [lengths[list(ids)].max() for ids in steps]
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.6


def test_storage_order_stays_the_same_in_every_epoch_longest_first() -> None:
    plan = Plan(6, batch_size=2, batch_by=sw.buckets([3, 9, 1, 8, 2, 7]))
    assert [ids.tolist() for (ids,) in batches_of(plan)] == [[1, 3], [0, 5], [2, 4]]
    assert [ids.tolist() for (ids,) in batches_of(plan, 1)] == [[1, 3], [0, 5], [2, 4]]


def test_a_budgets_number_of_steps_is_that_of_the_epoch() -> None:
    by = sw.buckets(durations(500), budget=60, window=100)
    plan = Plan(500, shuffle="full", seed=2, batch_by=by)
    counts = [plan.resumed(0, epoch=epoch).num_steps for epoch in range(8)]
    assert len(set(counts)) > 1
    for epoch, count in enumerate(counts):
        assert len(batches_of(plan, epoch)) == count
        with pytest.raises(ValueError, match=f"step={count} "):
            plan.indices(epoch, count, 0)


@pytest.mark.parametrize("budget", [None, 50.0])
@pytest.mark.parametrize("groups", [None, np.arange(3000) % 7])
@pytest.mark.parametrize("shuffle", [False, "full", "window"])
def test_it_is_a_sampler_like_others(budget, groups, shuffle) -> None:
    by = sw.buckets(durations(3000), budget=budget, window=700, shape=groups)
    sizes = [1000, 0, 2000] if shuffle == "window" else None
    plan = Plan(3000, batch_size=64, shuffle=shuffle, shard_sizes=sizes, batch_by=by)
    check_sampler(plan.sampler, process=groups is None and shuffle == "full")


def test_groups_are_spread_evenly_over_the_epoch() -> None:
    groups = np.repeat([0, 1], [9000, 1000])
    plan = Plan(10_000, batch_size=10, shuffle="full", batch_by=sw.buckets(None, shape=groups))
    rare = np.array([groups[ids[0]] for (ids,) in batches_of(plan)])
    assert rare.sum() == 100
    assert max(np.diff(np.flatnonzero(rare))) < 20


def test_a_sample_above_the_budget_is_alone_and_told_ahead(caplog) -> None:
    lengths = [3.0, 50.0, 4.0, 60.0, 5.0]
    with caplog.at_level(logging.WARNING, "shardwise"):
        plan = Plan(5, remainder="uneven", batch_by=sw.buckets(lengths, budget=12))
    assert "2 of 5 samples are longer than budget=12" in caplog.text
    assert "sample 3 with 60" in caplog.text
    assert [ids.tolist() for (ids,) in batches_of(plan)] == [[3], [1], [4], [0, 2]]
    with pytest.raises(ValueError, match=r"2 of 5 samples .* sample 3 with 60"):
        Plan(5, batch_by=sw.buckets(lengths, budget=12, oversized="error"))


def test_shapes_may_be_rows_or_words() -> None:
    shapes = [(480, 640), (640, 480), (480, 640), (512, 512)] * 5
    words = [f"{h}x{w}" for h, w in shapes]
    plans = [
        Plan(20, batch_size=5, remainder="uneven", batch_by=sw.buckets(None, shape=shape))
        for shape in (shapes, words)
    ]
    for plan in plans:
        steps = batches_of(plan)
        assert [len(ids) for (ids,) in steps] == [5] * 4
        assert all(len({shapes[i] for i in ids}) == 1 for (ids,) in steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [1, -2, 3]}, "1 of 3 lengths are negative, the first is -2 of sample 1"),
        ({"lengths": [1, np.nan, np.inf]}, "2 of 3 lengths are not finite"),
        ({"lengths": [1, 0, 3], "budget": 5}, "1 of 3 lengths are 0, the first of sample 1"),
        ({"lengths": [1, 2], "budget": 5, "batch_size": 2}, "leave one of them out"),
        ({"lengths": [1, 2], "budget": 0}, "budget=0"),
        ({"lengths": [1, 2], "budget": float("nan")}, "budget=nan"),
        ({"lengths": [1, 2], "budget": 10**400}, "finite number above 0"),
        ({"lengths": [1, 2], "batch_size": 0}, "batch_size=0"),
        ({"lengths": [1, 2], "window": 0}, "window=0"),
        ({"lengths": [[1, 2]]}, "one number a sample"),
        ({"lengths": None}, "give lengths"),
        ({"lengths": None, "budget": 3, "shape": [1]}, "counted in lengths"),
        ({"lengths": [1, 2], "oversized": "drop"}, "oversized='drop'"),
    ],
)
def test_columns_and_options_that_mean_nothing_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        sw.buckets(**options)


@pytest.mark.parametrize(
    ("lengths", "budget"), [(["a", "b"], None), ([None, 1], None), ([1, 2], "much")]
)
def test_columns_that_are_no_numbers_are_refused(lengths, budget) -> None:
    with pytest.raises(TypeError, match="must be"):
        sw.buckets(lengths, budget=budget)


def test_a_column_of_another_count_is_refused() -> None:
    with pytest.raises(ValueError, match="lengths has 4 values, the dataset has 5 samples"):
        Plan(5, batch_by=sw.buckets([1, 2, 3, 4]))
    with pytest.raises(ValueError, match="shape has 4 values, the dataset has 5 samples"):
        Plan(5, batch_by=sw.buckets(None, shape=[1, 2, 3, 4]))
    with pytest.raises(TypeError, match="lengths='n' names a field"):
        Plan(5, batch_by=sw.buckets("n"))
    with pytest.raises(TypeError, match=r"use sw\.buckets"):
        Plan(5, batch_by=[1, 2, 3, 4, 5])


def test_too_few_batches_for_the_ranks_are_told() -> None:
    plan = Plan(4, world_size=9, batch_by=sw.buckets([1, 2, 3, 4], budget=4))
    with pytest.raises(ValueError, match="too few batches for world_size=9"):
        plan.require_steps()
    assert Plan(
        4, world_size=9, batch_by=sw.buckets([1, 2, 3, 4], budget=4), remainder="uneven"
    ).require_steps()


def test_two_batch_sizes_contradict_each_other() -> None:
    by = sw.buckets([1, 2, 3, 4], batch_size=2)
    assert Plan(4, batch_by=by).batch_size == 2
    with pytest.raises(ValueError, match=r"batch_size=3 and sw\.buckets"):
        Plan(4, batch_size=3, batch_by=by)
    with pytest.raises(ValueError, match="leave batch_size= out"):
        Plan(4, batch_size=3, batch_by=sw.buckets([1, 2, 3, 4], budget=4))


class Counted:
    """An order that counts the positions that it was asked for."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.num_asked = 0

    def indices(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        self.num_asked += len(positions)
        return positions

    def spec(self) -> dict:
        return {"sampler": "counted"}


@pytest.mark.parametrize("world_size", [8, 512, 4096])
def test_by_default_padding_and_cost_of_a_rank_are_the_same_at_any_world_size(world_size) -> None:
    count = world_size * 32 * 64
    lengths, inner = durations(count), Counted(count)
    plan = Plan(
        count, batch_size=32, world_size=world_size, sampler=inner, batch_by=sw.buckets(lengths)
    )
    ids = [plan.indices(0, step, world_size // 2) for step in range(64)]
    # 256 positions for 32 rows, and as many again where a rank lies in two strands.
    assert inner.num_asked <= 2 * 16_384
    assert np.mean([cost(lengths, each) for each in ids]) <= 1.1 * np.mean(lengths) * 32
    for step in (0, 17, 63):
        ranks = range(0, world_size, max(1, world_size // 8))
        costs = [cost(lengths, plan.indices(0, step, rank)) for rank in ranks]
        assert max(costs) <= 1.3 * min(costs)


@given(
    st.integers(700, 4000), st.sampled_from([1, 3, 5]), st.booleans(), st.sampled_from([None, 3])
)
@settings(max_examples=15, deadline=None)
def test_strands_have_each_sample_once_whatever_the_ranks(count, world_size, shuffled, groups):
    lengths = np.arange(count) * 7 % 31 + 1
    shape = None if groups is None else np.arange(count) % groups
    rows = 600 // world_size

    def plan(ranks: int) -> Plan:
        by = sw.buckets(lengths, shape=shape)
        return Plan(
            count,
            batch_size=600 // ranks,
            world_size=ranks,
            shuffle="full" if shuffled else False,
            remainder="uneven",
            batch_by=by,
        )

    made = plan(world_size)
    assert made.batch_size == rows
    assert made.sampler.spec()["strands"] == 2
    assert sorted(flat(batches_of(made))) == list(range(count))
    alone = [np.concatenate(ranks).tolist() for ranks in batches_of(plan(1))]
    assert [np.concatenate(ranks).tolist() for ranks in batches_of(made)] == alone


def test_the_default_window_follows_the_global_batch_and_old_states_keep_theirs() -> None:
    lengths = durations(50_000)

    def plan(batch_size: int, **options) -> Plan:
        by = sw.buckets(lengths, **options)
        return Plan(50_000, batch_size=batch_size, world_size=8, shuffle="full", batch_by=by)

    small = plan(32).sampler.spec()
    assert small == plan(32, window=16_384).sampler.spec()
    assert plan(128).sampler.spec()["window"] == 64 * 1024
    # What a release before wrote: the same window for each global batch.
    old = plan(128, window=16_384)
    state = {"order": old.sampler.spec()}
    for batch_size in (128, 32, 16):
        resumed = plan(batch_size).in_order_of(state)
        assert resumed.sampler.spec() == old.sampler.spec()
        assert resumed.sampler.indices(0, np.arange(5)).tolist() == (
            old.sampler.indices(0, np.arange(5)).tolist()
        )
    new = {"order": plan(128).sampler.spec()}
    assert plan(16).in_order_of(new).sampler.spec() == plan(128).sampler.spec()


@pytest.mark.parametrize(("window", "is_told"), [(None, False), (400, True), (2000, False)])
def test_a_window_of_few_global_batches_is_told_on_rank_0(window, is_told, caplog) -> None:
    caplog.set_level(logging.WARNING, "shardwise")
    for rank in (1, 0):
        caplog.clear()
        data = sw.wrap([{"x": i} for i in range(1000 + rank)])
        by = sw.buckets(np.arange(1000 + rank), window=window)
        loader = sw.DataLoader(data, 32, batch_by=by, rank=rank, world_size=2, num_threads=0)
        next(iter(loader))
        assert ("global batches" in caplog.text) == (is_told and rank == 0)
        if is_told and rank == 0:
            assert "window=400" in caplog.text
            assert "6 global batches of 64" in caplog.text
