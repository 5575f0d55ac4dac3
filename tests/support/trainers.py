"""Runs the examples of trainers on two ranks, and holds what their ledgers say against the plan."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parents[1] / "integrations" / "programs" / "whole_and_in_parts.py"
# Nothing is asked of other machines, and nothing is reported to them.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
TIMEOUT_S = 280
PRELOAD = {
    "with_lightning": ("lightning", "examples.trainers.parts"),
    "with_deepspeed": ("deepspeed", "examples.trainers.parts"),
    "with_accelerate": ("accelerate", "examples.trainers.parts"),
    "with_transformers": ("transformers.trainer", "deepspeed", "examples.trainers.parts"),
}


def needs(framework: str) -> pytest.MarkDecorator:
    """Skips where a framework is not installed, with the reason; with CI set the tests fail."""
    missing = importlib.util.find_spec(framework) is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{framework} is not installed (group trainers)")


def launch(
    example: str,
    shards: Path,
    out: Path,
    *,
    stop_after: int,
    parts: str = "whole,first,rest",
    nproc: int = 2,
) -> list[dict]:
    """Run trainings of an example on `nproc` ranks; what each of them returned, a dict a rank."""
    run_ranks(
        PROGRAM,
        example,
        shards,
        out,
        stop_after,
        parts,
        nproc=nproc,
        preload=PRELOAD.get(example, ()),
        timeout=TIMEOUT_S,
        env=OFFLINE,
    )
    return [json.loads((out / f"result-{rank}.json").read_text()) for rank in range(nproc)]


def read_ledgers(directory: Path, num_ranks: int = 2) -> list[list[dict]]:
    return [
        [json.loads(line) for line in (directory / f"ledger-{rank}.jsonl").open()]
        for rank in range(num_ranks)
    ]


def global_steps(directory: Path, num_ranks: int) -> list[tuple[int, list[int]]]:
    """The epoch and all ranks' samples of each step; late ranks stayed to the end."""
    ledgers = read_ledgers(directory, num_ranks)
    num_steps = max(map(len, ledgers))
    steps = []
    for before_end in range(num_steps, 0, -1):
        lines = [ledger[-before_end] for ledger in ledgers if len(ledger) >= before_end]
        (epoch,) = {line["epoch"] for line in lines}
        steps.append((epoch, sorted(i for line in lines for i in line["ids"])))
    return steps


def assert_certified(directory: Path) -> None:
    """`shardwise certify` says of both epochs that every sample was handed out once."""
    found = document("certify", directory / "coverage", directory / "shards" / "train")
    num_samples = len(sw.tar(directory / "shards" / "train"))
    verdicts = [
        epoch["verdict"].partition(" exactly once")[0] for epoch in found["orders"][0]["epochs"]
    ]
    assert verdicts == [f"epoch {e}: every one of {num_samples:,} samples" for e in range(2)]


def assert_exact(out: Path) -> None:
    """Two epochs have each sample once, in equal steps and another order; both trainings agree.

    Step by step: the same samples, and the same loss, so that weights and optimizer agree, too.
    """
    num_samples = len(sw.tar(out / "whole" / "shards" / "train"))
    whole, parts = read_ledgers(out / "whole"), read_ledgers(out / "parts")
    first, second = whole
    assert [line["epoch"] for line in first] == [line["epoch"] for line in second]
    orders = []
    for epoch in range(2):
        ids = [
            i for ledger in whole for line in ledger if line["epoch"] == epoch for i in line["ids"]
        ]
        assert sorted(ids) == list(range(num_samples)), f"epoch {epoch}"
        orders.append(ids)
    assert {line["epoch"] for line in first} == {0, 1}
    assert len(set(map(tuple, orders))) == 2, "epochs have different orders"
    assert [[(line["epoch"], line["ids"]) for line in ledger] for ledger in parts] == [
        [(line["epoch"], line["ids"]) for line in ledger] for ledger in whole
    ]
    for mine, its in zip(parts, whole, strict=True):
        losses = [line["loss"] for line in its]
        assert [line["loss"] for line in mine] == pytest.approx(losses, abs=2e-4)
    for directory in (out / "whole", out / "parts"):
        assert_certified(directory)
