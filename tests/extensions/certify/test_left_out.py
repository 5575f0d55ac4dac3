"""`shardwise certify` of what was left out on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from tests.support.commands import document, run

NUM = 500


def loader(directory: Path, rank: int, world_size: int, **options: Any) -> sw.DataLoader:
    fixed = {"shuffle": True, "remainder": "uneven", "output": "numpy", "executor": "inline"}
    ranks = {"rank": rank, "world_size": world_size, "coverage": directory}
    return sw.DataLoader(sw.wrap(range(NUM)), batch_size=8, **{**fixed, **ranks, **options})


def test_skipped_steps_are_named(tmp_path: Path) -> None:
    for rank in range(2):
        it = loader(tmp_path, rank, 2)
        for step, _ in enumerate(it):
            if step == 3:
                it.skip(10)
    [order] = document("certify", tmp_path)["orders"]
    [epoch] = order["epochs"]
    assert epoch["verdict"] == (
        "epoch 0: 340 of 500 samples exactly once, "
        "left out on purpose: 160 samples at steps 4 to 13"
    )
    assert (epoch["left_out"], epoch["steps_skipped"], epoch["ok"]) == (160, ["4 to 13"], True)
    assert "left out on purpose: 160 samples at steps 4 to 13" in run("certify", tmp_path).stdout


def test_a_chain_of_kills_skips_and_lists_is_certified(tmp_path: Path) -> None:
    state, seen = None, list[int]()
    for number, world_size in enumerate((2, 3, 1)):
        exclude = None if number == 0 else np.arange(0, NUM, 5 - number)
        for rank in range(world_size):
            it = loader(tmp_path, rank, world_size, exclude=exclude)
            if state is not None:
                it.load_state_dict(state)
            it.skip(2)
            for step, batch in enumerate(it):
                seen += batch["__index__"].tolist()
                if step == 4 and number < 2:
                    next_state = it.state_dict()
                    break
        state = next_state
    found = document("certify", tmp_path)
    [epoch] = found["orders"][0]["epochs"]
    assert epoch["is_complete"]
    assert epoch["handed_out"] == len(seen) == len(set(seen))
    assert epoch["handed_out"] + epoch["left_out"] == NUM
    assert epoch["steps_skipped"][0] == "0 to 1"
    assert len(epoch["steps_skipped"]) == 3


def test_ranks_that_left_out_other_samples_are_a_fault(tmp_path: Path) -> None:
    for rank in range(2):
        for _ in loader(tmp_path, rank, 2, exclude=np.array([rank, 7])):
            pass
    found = document("certify", tmp_path, exit_code=1)
    [epoch] = found["orders"][0]["epochs"]
    assert any("exclude= left out 2 samples on one rank" in fault for fault in epoch["faults"])


def test_a_rank_that_did_not_skip_is_a_fault(tmp_path: Path) -> None:
    for rank in range(2):
        it = loader(tmp_path, rank, 2)
        if rank:
            it.skip(2)
        for _ in it:
            pass
    assert not document("certify", tmp_path, exit_code=1)["ok"]


def test_what_a_state_left_out_by_hand_is_still_a_fault(tmp_path: Path) -> None:
    it = loader(tmp_path, 0, 1)
    next(iter(it))
    state = it.state_dict()
    state["position"] = 80
    other = loader(tmp_path, 0, 1)
    other.load_state_dict(state)
    for _ in other:
        pass
    assert not document("certify", tmp_path, exit_code=1)["ok"]
