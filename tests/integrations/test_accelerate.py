"""Accelerate's `prepare` divides nothing a second time, and ends its sums with the epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.torchrun import torchrun
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

pytestmark = needs("accelerate")
PROGRAM = Path(__file__).parent / "programs" / "prepared.py"
KINDS = ("plain", "registered", "facade", "integration", "stateful")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What two ranks found."""
    out = tmp_path_factory.mktemp("prepared")
    torchrun(PROGRAM, out, nproc=2, timeout=TIMEOUT_S, env=OFFLINE)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_1000_samples_is_used_once(records: list[dict], kind: str) -> None:
    assert sorted(records[0][kind] + records[1][kind]) == list(range(1000))
    assert records[0][kind] == records[0]["plain"], "the one order"


def test_a_sampler_in_torchs_loader_is_not_divided_again(records: list[dict]) -> None:
    assert sorted(records[0]["sampler"] + records[1]["sampler"]) == list(range(992))


def test_metrics_have_each_sample_once_though_the_tail_is_padded(records: list[dict]) -> None:
    assert sorted(records[0]["metrics"]) == list(range(1000))
    assert records[0]["metrics"] == records[1]["metrics"]


def test_a_sum_of_gradients_ends_with_the_epoch(records: list[dict]) -> None:
    known, unknown = records[0]["sums"]
    epoch = [5, 10, 15, 20, 25, 30, 31]
    assert known == epoch * 2
    assert unknown == [5, 10, 15, 20, 25, 30, 4, 9, 14, 19, 24, 29], "why the integration exists"
