"""Replicas that are killed and that join without a restart: each global batch is one process's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.extension
@pytest.mark.parametrize(
    ("num_changes", "num_samples", "seed"),
    [(5, 607, 0), pytest.param(50, 6_007, 1, marks=pytest.mark.long)],
)
def test_kills_and_joins_leave_every_global_batch_as_it_is_and_certify_content(
    tmp_path: Path, num_changes: int, num_samples: int, seed: int
) -> None:
    options = {"changes": num_changes, "samples": num_samples, "seed": seed, "coverage": tmp_path}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "elastic_replicas.py", *arguments],
        check=True,
        capture_output=True,
        timeout=300,
    )
    report = json.loads(done.stdout)
    # The program has compared each committed global batch with that of one process.
    assert report["samples"] == num_samples
    assert report["kills"] + report["joins"] == num_changes
    assert min(report["kills"], report["joins"], len(report["worlds"]) - 1) > 0
    assert f"every one of {num_samples:,} samples exactly once" in run("certify", tmp_path).output


@pytest.mark.long
def test_torchfts_replicas_make_the_global_batches_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("torchft")
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "torchft_replicas.py"],
            check=True, stdout=subprocess.PIPE, stderr=log, timeout=300,
        )  # fmt: skip
    # The program has compared each committed global batch with that of one process.
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"] == -9
    assert 3 in report["worlds"]
