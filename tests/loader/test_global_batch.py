"""`global_batch_size` and `balance` in every entry point: the loader, torch's parts, frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.utils.data

import shardwise as sw
from tests.support.extensions import HAS_EXTENSIONS

DATA = [{"x": i, "cost": (i * 7919) % 101 + 1} for i in range(130)]
SIZE = 24


def lengths_of(world_size: int, **options: Any) -> list[int]:
    """Samples of each rank at the first step."""
    loaders = [
        sw.DataLoader(DATA, rank=rank, world_size=world_size, num_threads=0, **options)
        for rank in range(world_size)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    return [len(next(iter(loader))["x"]) for loader in loaders]


def test_24_samples_over_5_ranks_are_5_5_5_5_and_4() -> None:
    assert lengths_of(5, global_batch_size=SIZE) == [5, 5, 5, 5, 4]
    assert lengths_of(24, global_batch_size=SIZE) == [1] * 24
    loader = sw.DataLoader(DATA, global_batch_size=SIZE, rank=4, world_size=5)
    assert (len(loader), loader.batch_size, loader.total_batch_size) == (6, 5, SIZE)
    assert "global_batch_size" not in repr(loader)


@pytest.mark.parametrize("kind", ["full", *["buckets", "mixture"] * HAS_EXTENSIONS])
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_a_state_of_3_ranks_resumes_on_5_at_the_same_global_step(kind: str, remainder: Any) -> None:
    def ranks_of(world_size: int) -> list[sw.DataLoader]:
        data: Any = sw.wrap(DATA)
        options: dict[str, Any] = {"shuffle": True, "seed": 5}
        if kind == "buckets":
            options["batch_by"] = sw.buckets("cost")
        if kind == "mixture":
            data = sw.mix({"a": (data, 2.0), "b": (sw.wrap(DATA), 1.0)}, per="batch", until=130)
            options = {}
        return [
            sw.DataLoader(
                data, global_batch_size=SIZE, rank=rank, world_size=world_size, num_threads=0,
                remainder=remainder, output="numpy", **options,
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def step(iterators: list[Any]) -> list[int]:
        batches = [next(each) for each in iterators]
        valid = [b.get("__valid__", np.ones(len(b["__index__"]), bool)) for b in batches]
        return sorted(
            i for b, v in zip(batches, valid, strict=True) for i in b["__index__"][v].tolist()
        )

    alone = iter(ranks_of(1)[0])
    expected = [step([alone]) for _ in range(len(ranks_of(1)[0]))]
    three = ranks_of(3)
    iterators = [iter(loader) for loader in three]
    got = [step(iterators) for _ in range(2)]
    states = [loader.state_dict() for loader in three]
    assert states[0] == states[1] == states[2]
    five = ranks_of(5)
    for loader in five:
        loader.load_state_dict(states[0])
    iterators = [iter(loader) for loader in five]
    got += [step(iterators) for _ in range(five[0].num_steps_left)]
    assert got == expected


def test_torchs_parts_have_the_batches_of_the_loader() -> None:
    options: dict[str, Any] = {"global_batch_size": SIZE, "balance": "cost", "shuffle": True}
    for rank in range(5):
        ranks = {"rank": rank, "world_size": 5}
        loader = sw.DataLoader(DATA, num_threads=0, output="numpy", **options, **ranks)
        expected = [batch["__index__"].tolist() for batch in loader]
        iterable = sw.torch.IterableDataset(sw.wrap(DATA), **options, **ranks)
        batches = sw.torch.StatefulDataLoader(iterable, batch_size=None)
        assert batches.total_batch_size == SIZE
        assert [batch["__index__"].tolist() for batch in batches] == expected
        sampler = sw.torch.BatchSampler(sw.wrap(DATA), **options, **ranks)
        assert list(sampler) == expected
    with pytest.raises(ValueError, match="leave one of them out"):
        sw.torch.BatchSampler(DATA, 8, global_batch_size=SIZE)


def costs_at(step: int, **options: Any) -> list[float]:
    costs = []
    for rank in range(5):
        loader = sw.DataLoader(DATA, rank=rank, world_size=5, num_threads=0, **options)
        costs.append(float(list(loader)[step]["cost"].sum()))
    return costs


def test_balance_takes_a_column_or_an_array_and_deals_the_same_global_batches() -> None:
    column = [sample["cost"] for sample in DATA]
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "remainder": "uneven"}
    plain, named = costs_at(1, **options), costs_at(1, balance="cost", **options)
    assert costs_at(1, balance=column, **options) == named
    assert sum(named) == sum(plain)
    assert max(named) - min(named) < max(plain) - min(plain)


@pytest.mark.extension
def test_attention_is_the_cost_of_packs_of_subsets_and_of_mixtures_of_them() -> None:
    documents = sw.wrap([{"tokens": np.arange(n)} for n in (3, 2, 4, 1, 6, 5)])
    packs = sw.pack(documents, length=6, progress=False)
    squares = [sum(n * n for n in np.diff(pack["cu_seqlens"]) if n) for pack in packs]
    tokens = [int(pack["loss_mask"].sum()) for pack in packs]
    costs = packs.costs(hidden=10)
    # Of a pack with padding, the padding is no document.
    assert all(
        cost == 6 * 10 * 6 + square - (6 - count) ** 2
        for cost, square, count in zip(costs, squares, tokens, strict=True)
    )
    assert packs.subset([2, 0]).costs(hidden=10).tolist() == costs[[2, 0]].tolist()
    assert sw.concat([packs, packs]).costs(hidden=10).tolist() == [*costs, *costs]
    mixed = sw.mix({"a": (packs, 1.0), "b": (packs.map(dict), 1.0)})
    assert mixed.costs(hidden=10).tolist() == [*costs, *costs]
    loader = sw.DataLoader(mixed, 1, balance="attention", hidden=10, rank=0, world_size=2)
    assert next(iter(loader))["tokens"].shape == (1, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": "attention"}, "give both balance='attention' and the"),
        ({"hidden": 8}, "balance=None and hidden=8: give both"),
        ({"balance": [1.0] * 130, "hidden": 8}, "or another balance alone"),
        ({"balance": "attention", "hidden": 8}, "has no packs of sw.pack"),
        ({"balance": "attention", "hidden": 0}, "hidden=0 must be at least 1"),
        ({"balance": [1.0] * 129}, "balance has 129 costs, the dataset has 130 samples"),
        ({"balance": "nope"}, "nope"),
    ],
)
def test_a_balance_that_is_none_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.DataLoader(DATA, rank=0, world_size=2, num_threads=0, **options)


def test_frameworks_that_gather_equal_batches_refuse_shares_that_differ() -> None:
    loader = sw.DataLoader(DATA, global_batch_size=SIZE, rank=0, world_size=5, num_threads=0)
    with pytest.raises(ValueError, match="gives 5 ranks 5 and 4 samples"):
        loader._pad(only_default=True)
    even = sw.DataLoader(DATA, global_batch_size=SIZE, rank=0, world_size=4, num_threads=0)
    even._pad(only_default=True)
    assert even.plan.remainder == "pad"
    assert isinstance(even.as_torch_dataloader(), torch.utils.data.DataLoader)
