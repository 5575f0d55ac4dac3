"""Lightning with the loaders that a user first gives it: exact, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.ranks import run_ranks
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

pytestmark = needs("lightning")
PROGRAM = Path(__file__).parent / "programs" / "lightning_doors.py"
NUM_SAMPLES = 100


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("lightning")
    preload = ["lightning", "torchmetrics"]
    run_ranks(PROGRAM, out, nproc=2, preload=preload, timeout=TIMEOUT_S, env=OFFLINE)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("remainder", [None, "pad"])
@pytest.mark.parametrize("num_samples", [49, 101])
def test_a_validation_metric_of_two_ranks_is_that_of_one(
    records: list[dict], num_samples: int, remainder: str | None
) -> None:
    for record in records:
        found = record["validated"][f"{num_samples} {remainder}"]
        assert found == pytest.approx(np.mean(np.arange(num_samples) ** 2.0))


def test_an_instance_of_torchs_class_is_divided_once_without_a_setting(records: list[dict]) -> None:
    orders = []
    for epoch in range(2):
        batches = [ids for record in records for e, ids in record["as_torch"] if e == epoch]
        orders.append([i for ids in batches for i in ids])
        assert sorted(orders[-1]) == list(range(NUM_SAMPLES))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", ["overfit", "overfit as_torch"])
def test_overfit_batches_repeats_the_same_first_batches(records: list[dict], kind: str) -> None:
    for rank, record in enumerate(records):
        first = [list(range(at, at + 12)) for at in range(12 * rank, 72, 24)]
        assert record[kind] == [[epoch, ids] for epoch in range(2) for ids in first]


@pytest.mark.parametrize("kind", ["overfit shuffled", "overfit as_torch shuffled"])
def test_overfit_batches_of_a_shuffled_loader_is_one_sentence(
    records: list[dict], kind: str
) -> None:
    for record in records:
        assert record[kind].startswith("FrameworkError: "), record[kind]
        assert "Lightning's overfit_batches" in record[kind]
        assert "make the loader with shuffle=False" in record[kind]
