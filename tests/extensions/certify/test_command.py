"""`shardwise certify`: chains of kills without a false alarm, and every planted fault found."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.request import BatchRows
from shardwise.plan import (
    FullSampler,
    Sampler,
    SequentialSampler,
    VirtualEpochs,
    WindowSampler,
)
from tests.support.commands import document, run
from tests.support.coverage import Data, Ranks, random_chain
from tests.support.tars import make_shards

SIZES = [40, 0, 61, 30, 70]
NUM = sum(SIZES)
DATA = Data(NUM)
SAMPLERS: list[Sampler] = [
    WindowSampler(SIZES, window=5, lanes=7, seed=3),
    FullSampler(NUM, seed=1),
    SequentialSampler(NUM),
    VirtualEpochs(FullSampler(NUM), 90),
    sw.WeightedSampler(np.ones(NUM), num_samples=150),
    sw.mix({"a": (sw.wrap(range(150)), 3), "b": (sw.wrap(range(51)), 1)}, block=8).sampler,
    sw.WeightedSampler(np.arange(NUM), replacement=False),
]


def check_chains(directory: Path, seeds: range) -> None:
    for seed in seeds:
        shutil.rmtree(directory, ignore_errors=True)
        sampler = SAMPLERS[seed % len(SAMPLERS)]
        num_runs = random_chain(directory, DATA, sampler, seed=seed)
        found = document("certify", directory, exit_code=0)
        assert found["ok"], seed
        [order] = found["orders"]
        assert [e["epoch"] for e in order["epochs"]] == [0, 1], (seed, num_runs)
        assert all(e["is_complete"] for e in order["epochs"]), (seed, num_runs)


def test_no_chain_of_kills_and_changes_of_ranks_is_a_false_alarm(tmp_path: Path) -> None:
    check_chains(tmp_path / "coverage", range(20))


@pytest.mark.long
def test_no_false_alarm_over_200_chains(tmp_path: Path) -> None:
    check_chains(tmp_path / "coverage", range(20, 220))


def test_an_epoch_of_kills_resumes_and_other_ranks_is_every_sample_once(tmp_path: Path) -> None:
    sampler = SAMPLERS[0]
    first = Ranks(tmp_path, DATA, sampler, world_size=4, shared="one")
    passes = first.begin()
    for step in range(9):
        first.step(passes)
        if step in (2, 5):
            first.note(passes)
    first.note(passes, [0, 2])  # killed while the ranks wrote
    second = Ranks(tmp_path, DATA, sampler, world_size=3, batch_size=5, shared="two")
    second.epoch(0, start=6 * 12)
    second.epoch(1)
    output = run("certify", tmp_path).stdout
    assert f"epoch 0: every one of {NUM} samples exactly once" in output
    assert f"epoch 1: every one of {NUM} samples exactly once" in output
    assert "2 lines of work that was undone" in output
    assert "4, then 3" in output


@pytest.mark.parametrize(
    ("remainder", "text"),
    [
        ("uneven", f"every one of {NUM} samples exactly once"),
        ("pad", f"every one of {NUM} samples exactly once, 39 rows of padding"),
        ("drop", f"180 of {NUM} samples exactly once, 21 left out at the end"),
    ],
)
def test_each_remainder_has_its_own_words(tmp_path: Path, remainder: Any, text: str) -> None:
    Ranks(tmp_path, DATA, SAMPLERS[1], world_size=4, batch_size=15, remainder=remainder).epoch()
    assert f"epoch 0: {text}" in run("certify", tmp_path).stdout


def test_epochs_that_no_line_is_about_are_listed(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, DATA, SAMPLERS[0], world_size=2)
    for epoch in (1, 4, 6):
        ranks.epoch(epoch)
    [order] = document("certify", tmp_path, exit_code=0)["orders"]
    assert order["epochs_without_lines"] == [[0, 0], [2, 3], [5, 5]]
    output = run("certify", tmp_path).stdout
    assert "epoch 0: no line of this data" in output
    assert "epochs 2 to 3: no line of this data" in output


def test_a_rest_that_fills_no_global_batch_of_more_ranks_is_left_out(tmp_path: Path) -> None:
    first = Ranks(tmp_path, DATA, SAMPLERS[1], world_size=1, batch_size=1, remainder="drop")
    first.epoch(num_steps=NUM - 5)
    second = Ranks(tmp_path, DATA, SAMPLERS[1], world_size=2, batch_size=4, remainder="drop")
    second.epoch(0, NUM - 5)
    output = run("certify", tmp_path).stdout
    assert f"{NUM - 5} of {NUM} samples exactly once, 5 left out at the end" in output


def mixed(weights: dict[Any, Any] | None = None, **options: Any) -> Sampler:
    parts = {name: sw.wrap(range(size)) for name, size in (("a", 150), ("b", 51))}
    changes = {0: {"a": 3, "b": 1}, **(weights or {})}
    options = {"until": 192, "block": 16, **options}
    return sw.mix(parts, schedule=list(changes.items()), **options).sampler


@pytest.mark.parametrize(
    ("later", "text"),
    [
        (
            mixed({96: {"b": 1}}),
            "144 positions of the order exactly once, from position 48 of 192 on",
        ),
        (mixed(until=300), "252 positions of the order exactly once, from position 48 of 300 on"),
        (mixed(until=40), "32 positions of the order exactly once, from position 8 of 40 on"),
    ],
    ids=["weights", "longer", "shorter"],
)
def test_a_mixture_that_changed_at_a_resume_goes_on_from_the_order_before(
    tmp_path: Path, later: Sampler, text: str
) -> None:
    first = Ranks(tmp_path, DATA, mixed(), world_size=2, batch_size=12, shared="one")
    first.epoch(num_steps=3, every=1)  # two of the three are kept
    epoch, start = divmod(48, later.num_samples)
    Ranks(tmp_path, DATA, later, world_size=3, batch_size=8, shared="two").epoch(epoch, start)
    output = run("certify", tmp_path).stdout
    assert (
        "epoch 0: 48 positions of the order exactly once, up to position 48 of 192 so far" in output
    )
    assert f"epoch {epoch}: {text}" in output
    assert "2 lines of work that was undone" in output


def test_a_rank_without_a_line_where_another_order_goes_on_is_a_fault(tmp_path: Path) -> None:
    first = Ranks(tmp_path, DATA, mixed(), world_size=2, batch_size=12, shared="one")
    passes = first.epoch(num_steps=1)
    first.step(passes)
    first.note(passes, [0])
    Ranks(tmp_path, DATA, mixed({96: {"b": 1}}), shared="two").epoch(0, 48)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "positions 0 to 48: no line says who read them" in output


def planted(kind: str, draw: random.Random) -> Any:
    """A fault of one or two samples."""
    rank, step = draw.randrange(3), draw.randrange(9)

    def fault(of_rank: int, of_step: int, rows: BatchRows) -> BatchRows:
        if (of_rank, of_step) != (rank, step):
            return rows
        ids = rows.ids.copy()
        row = draw.randrange(len(ids))
        if kind == "lost":
            ids = np.delete(ids, row)
        elif kind == "double":
            ids = np.append(ids, ids[row])
        elif kind == "both":
            ids[row] = next((i for i in ids if i != ids[row]), (ids[row] + 1) % NUM)
        else:
            ids = (ids + 1) % NUM
        return replace(rows, ids=ids)

    return fault


def check_faults(directory: Path, seeds: range) -> None:
    for seed in seeds:
        shutil.rmtree(directory, ignore_errors=True)
        draw = random.Random(seed)
        kind = ("lost", "double", "both", "shifted")[seed % 4]
        fault = planted(kind, draw)
        sampler = SAMPLERS[seed // 4 % len(SAMPLERS)]
        ranks = Ranks(
            directory,
            DATA,
            sampler,
            world_size=3,
            remainder=draw.choice(["uneven", "pad", "drop"]),
            on_error=draw.choice(["raise", "skip", "replace"]),
            shared="one",
            fault=fault,
        )
        ranks.epoch()
        [epoch] = document("certify", directory, exit_code=1)["orders"][0]["epochs"]
        assert not epoch["ok"], (seed, kind)
        assert "run one, rank" in epoch["faults"][0], (seed, kind)


@pytest.mark.parametrize("faulty", [None, 0, 1])
def test_processes_that_share_a_rank_are_each_held_against_the_plan(
    tmp_path: Path, faulty: int | None
) -> None:
    # Two of a tensor-parallel group have equal loaders: one run, and each rank twice.
    for number in range(2):
        fault = planted("both", random.Random(7)) if number == faulty else None
        ranks = Ranks(tmp_path, DATA, SAMPLERS[0], world_size=3, shared="one", fault=fault)
        ranks.epoch()
    output = run("certify", tmp_path, exit_code=int(faulty is not None)).stdout
    assert "undone" not in output
    if faulty is None:
        assert f"epoch 0: every one of {NUM} samples exactly once\n" in output
    else:
        assert "not the samples of the plan" in output


def test_planted_faults_are_found_and_placed(tmp_path: Path) -> None:
    check_faults(tmp_path / "coverage", range(40))


@pytest.mark.long
def test_400_of_400_planted_faults_are_found(tmp_path: Path) -> None:
    check_faults(tmp_path / "coverage", range(40, 440))


def test_a_fault_is_named_by_rank_and_steps(tmp_path: Path) -> None:
    def lose(rank: int, step: int, rows: BatchRows) -> BatchRows:
        return replace(rows, ids=rows.ids[1:]) if rank == 2 and 3 < step < 12 else rows

    Ranks(tmp_path, DATA, SAMPLERS[1], world_size=3, shared="one", fault=lose).epoch()
    [epoch] = document("certify", tmp_path, exit_code=1)["orders"][0]["epochs"]
    # Lines of two steps: those in a row are one fault.
    assert epoch["faults"] == [
        "run one, rank 2 of 3, epoch 0, steps 4 to 12, positions 36 to 108: not the samples of "
        "the plan"
    ]


def test_other_data_than_the_lines_are_of_is_said(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", [4])
    Ranks(tmp_path / "coverage", DATA, SAMPLERS[0]).epoch()
    output = run("certify", tmp_path / "coverage", *shards, exit_code=1).stdout
    assert "of other data: the fingerprint is 0123456789abcdef" in output
