"""Chains of real loaders over every kind of data and order, certified; and a fault in each."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from tests.support.commands import document, run
from tests.support.coverage import Damaged, plant_fault
from tests.support.tars import make_shards

KINDS = ("shards", "subset", "mixture", "virtual epochs", "buckets", "weights", "damaged")


def data_of(kind: str, directory: Path) -> tuple[Any, dict[str, Any]]:
    if kind == "damaged":
        return sw.wrap(Damaged(120, range(5, 120, 13))), {"shuffle": True}
    if kind == "mixture":
        return sw.mix({"a": (sw.wrap(range(90)), 3), "b": (sw.wrap(range(31)), 1)}, block=8), {}
    data = sw.tar(make_shards(directory / "shards", [40, 0, 61, 19])).select("cls")
    if kind == "subset":
        return data.subset(range(7, 111, 2)), {"shuffle": True}
    options = {
        "shards": {"shuffle": True},
        "virtual epochs": {"shuffle": True, "epoch_size": 95},
        "weights": {"sampler": sw.WeightedSampler(np.arange(1, 121), replacement=False)},
        "buckets": {"shuffle": True, "batch_by": sw.buckets(np.arange(120) % 9 + 1, batch_size=4)},
    }
    return data, options[kind]


def ranks_of(data: Any, coverage: Path, draw: random.Random, **options: Any) -> list[sw.DataLoader]:
    """The loaders of all ranks, of some world size."""
    world_size = draw.choice([1, 2, 3, 7])
    options |= {
        "batch_size": 4,
        "on_error": draw.choice(["skip", "replace"]),
        "remainder": draw.choice(["uneven", "pad", "drop"]),
        "coverage": coverage,
        "output": "numpy",
        "executor": "inline",
        "world_size": world_size,
    }
    return [sw.DataLoader(data, rank=rank, **options) for rank in range(world_size)]


def train(data: Any, coverage: Path, options: dict[str, Any], draw: random.Random) -> None:
    """Two epochs on ranks that change with each kill, some of it between a line and its save."""
    state: Any = None
    is_killed = True
    while is_killed:
        ranks = ranks_of(data, coverage, draw, **options)
        for it in ranks if state is not None else ():
            it.load_state_dict(state)
        is_killed, steps_left = False, draw.randrange(4, 40)
        while ranks[0].epoch < 2 and not is_killed:
            for _ in zip(*ranks, strict=True):
                steps_left -= 1
                if not steps_left:
                    for it in draw.sample(ranks, draw.randrange(len(ranks))):
                        it.state_dict()
                    is_killed = True
                    break
                if draw.random() < 0.3:
                    states = [it.state_dict() for it in ranks]
                    state = states[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_of_kills_and_changes_of_ranks_is_certified(kind: str, tmp_path: Path) -> None:
    data, options = data_of(kind, tmp_path)
    for seed in range(3):
        coverage = tmp_path / str(seed)
        train(data, coverage, options, random.Random(f"{kind} {seed}"))
        found = document("certify", coverage)
        [order] = found["orders"]
        assert [(epoch["ok"], epoch["is_complete"]) for epoch in order["epochs"]] == [
            (True, True)
        ] * 2


@pytest.mark.parametrize("fault", ["lost", "double", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_engine_shows_in_every_kind(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data, options = data_of(kind, tmp_path)
    plant_fault(monkeypatch, fault)
    train(data, tmp_path / "coverage", options, random.Random(1))
    output = run("certify", tmp_path / "coverage", exit_code=1).stdout
    assert "NOT every one of" in output
