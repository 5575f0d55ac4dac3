"""A batch of any step, made again; and where a sample comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.testing import assert_batches_equal
from tests.support.extensions import HAS_EXTENSIONS

NUM = 131


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random(3)}


DATA = sw.wrap(range(NUM)).map(noisy)
LENGTHS = np.random.default_rng(0).integers(1, 50, NUM)
ORDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "storage": (DATA, {}),
    "full": (DATA, {"shuffle": True, "seed": 3}),
    "window": (sw.concat([DATA.subset(range(60)), DATA]), {"shuffle": "window", "seed": 3}),
    "padded": (DATA, {"shuffle": True, "remainder": "pad"}),
    "dropped": (DATA, {"shuffle": True, "remainder": "drop"}),
    "virtual": (DATA, {"shuffle": True, "epoch_size": 50, "remainder": "uneven"}),
    "weighted": (DATA, {"sampler": sw.WeightedSampler(LENGTHS, seed=2)}),
    "array": (DATA, {"sampler": np.arange(NUM)[::-1], "seed": 4}),
    "excluded": (DATA, {"shuffle": True, "exclude": np.arange(0, NUM, 5)}),
}
if HAS_EXTENSIONS:
    PARTS = {"a": (sw.wrap(range(90)).map(noisy), 2), "b": (DATA, 1)}
    ORDERS |= {
        "mixture": (sw.mix(PARTS, until=150, block=8), {}),
        "buckets": (DATA, {"shuffle": True, "batch_by": sw.buckets(LENGTHS)}),
        "budget": (DATA, {"shuffle": True, "batch_by": sw.buckets(LENGTHS, budget=200)}),
    }
EXECUTORS = [{"executor": "inline"}, {"num_workers": 0, "num_threads": 2}]


def loader(order: str, rank: int, world_size: int, **options: Any) -> sw.DataLoader:
    data, own = ORDERS[order]
    size = {} if order == "budget" else {"batch_size": 4}
    fixed = {"output": "numpy", "rank": rank, "world_size": world_size}
    return sw.DataLoader(data, **{"executor": "inline", **size, **own, **fixed, **options})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("executor", EXECUTORS, ids=["inline", "threads"])
def test_every_batch_of_a_run_is_made_again(order: str, executor: dict[str, Any]) -> None:
    options = {"executor": None, **executor}
    asked = loader(order, 0, 3)
    for rank in range(3):
        with loader(order, rank, 3, **options) as run:
            for epoch in range(2):
                for step, batch in enumerate(run):
                    assert_batches_equal(asked.batch_at(step, rank, epoch), batch)
                    if step % 5 == 0:
                        assert_batches_equal(run.batch_at(step), batch)
    assert asked.stats()["batches"] == 0
    assert (asked.epoch, asked.state_dict()["position"]) == (0, 0)


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"budget"}))
def test_the_batches_of_a_run_that_resumed_on_other_ranks_are_made_again(order: str) -> None:
    first = loader(order, 0, 3)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    for rank in range(2):
        run, asked = loader(order, rank, 2), loader(order, 0, 2)
        run.load_state_dict(state)
        asked.load_state_dict(state)
        before = 5  # steps of 8 in the 36 samples of 3 steps of 12
        for step, batch in enumerate(run):
            assert_batches_equal(asked.batch_at(before + step, rank), batch)
            assert_batches_equal(run.batch_at(before), batch)
            if step == 0:
                run.skip(1)
                break
        assert_batches_equal(run.batch_at(before), asked.batch_at(before, rank))


def test_worker_processes_make_what_a_fresh_loader_says() -> None:
    with loader("full", 1, 2, executor=None, num_workers=1) as run:
        batches = list(run)
    for step in (0, 7, len(batches) - 1):
        assert_batches_equal(loader("full", 0, 2).batch_at(step, rank=1), batches[step])


@pytest.mark.parametrize("order", ORDERS)
def test_a_sample_comes_where_a_run_has_it(order: str) -> None:
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for rank in range(3):
        run = loader(order, rank, 3)
        for epoch in range(2):
            for step, batch in enumerate(run):
                valid = batch.get("__valid__", np.ones(len(batch["__index__"]), dtype=bool))
                for row, index in enumerate(batch["__index__"].tolist()):
                    if valid[row]:
                        found.setdefault(index, []).append((epoch, step, rank, row))
    asked = loader(order, 0, 3)
    for index in range(0, len(asked.dataset), 7):
        places = asked.places_of(index, epochs=range(2))
        assert sorted(places) == sorted(found.get(index, [])), index
    assert asked.places_of(1) == asked.places_of(1, epochs=range(1))


@pytest.mark.extension
def test_places_count_from_a_state_that_was_taken_on_other_ranks() -> None:
    first = loader("full", 0, 3)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    asked = loader("full", 0, 2)
    asked.load_state_dict(first.state_dict())
    for step in range(5, len(asked)):
        for rank in range(2):
            for row, index in enumerate(asked.explain(step, rank).ids.tolist()):
                assert asked.places_of(index) == [(0, step, rank, row)]


@pytest.mark.extension
def test_padding_is_no_place() -> None:
    asked = sw.DataLoader(
        sw.wrap(range(5)), 8, remainder="pad", executor="inline", rank=0, world_size=1
    )
    assert asked.explain(0).ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert asked.places_of(1) == [(0, 0, 0, 1)]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda it: it.batch_at(11), r"step=11: epoch 0 has the steps 0 to 10"),
        (lambda it: it.batch_at(-1), r"step=-1: epoch 0"),
        (lambda it: it.batch_at(0, rank=3), r"rank=3 must be in 0\.\.2"),
        (lambda it: it.batch_at(0, epoch=-1), r"epoch=-1"),
        (lambda it: it.places_of(NUM), r"id=131 must be at most 130"),
        (lambda it: it.places_of(0, epochs=[-2]), r"epoch=-2"),
    ],
)
def test_what_there_is_not_is_refused(question: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question(loader("full", 0, 3, remainder="uneven"))


def test_a_million_epochs_ahead_is_as_near_as_the_next_one() -> None:
    asked = loader("full", 0, 3)
    [(epoch, step, rank, row)] = asked.places_of(5, epochs=[10**6])
    assert asked.batch_at(step, rank, epoch)["__index__"][row] == 5
