"""wids on two real ranks: alone, and with a loader that Accelerate has prepared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwise.compat.wids.wids_index import make_index
from tests.support.ranks import run_ranks
from tests.support.tars import make_shards
from tests.support.trainers import needs

pytestmark = needs("accelerate")

N, RANKS = 160, 2
PROGRAM = Path(__file__).with_name("wids_ranks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank got, by the name of the case."""
    directory = tmp_path_factory.mktemp("ranks")
    shards = make_shards(directory / "data", [50, 20, 63, 27])
    index = directory / "data" / "index.json"
    index.write_text(json.dumps(make_index(shards, directory=str(directory / "data"))))
    run_ranks(PROGRAM, directory, index, nproc=RANKS, preload=["accelerate"], timeout=240)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(RANKS)]


CASES = ("plain", "prepared", "seedable", "split", "dispatched", "undivided")


@pytest.mark.parametrize("case", CASES)
def test_all_samples_reach_the_model_once(found, case):
    # wids with prepare: 48 of 160 on four ranks, for both divide.
    numbers = [n for rank in found for batch in rank[case]["batches"] for n in batch]
    assert sorted(numbers) == list(range(N))


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_take_as_many_steps_as_len_says(found, case):
    for rank in found:
        assert len(rank[case]["batches"]) == rank[case]["len"] == N // RANKS // 5


@pytest.mark.parametrize("case", ["prepared", "seedable", "split", "dispatched"])
def test_the_next_epoch_is_another_one(found, case):
    again = [n for rank in found for batch in rank[case + " again"]["batches"] for n in batch]
    first = [n for rank in found for batch in rank[case]["batches"] for n in batch]
    assert sorted(again) == list(range(N))
    assert again != first
