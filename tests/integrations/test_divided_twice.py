"""Accelerate's `prepare` around what is divided already: right, or an error on every rank."""

import json
from pathlib import Path

from tests.support.ranks import run_ranks
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

PROGRAM = Path(__file__).parent / "programs" / "divided_twice.py"
NUM_SAMPLES = 54


@needs("accelerate")
def test_a_second_division_is_refused_and_a_single_one_reads_everything(tmp_path):
    run_ranks(PROGRAM, tmp_path, nproc=2, preload=["accelerate"], timeout=TIMEOUT_S, env=OFFLINE)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    kinds = [
        f"{p}{d}" for p in ("batch sampler", "sampler", "iterable") for d in ("", ", dispatched")
    ]
    for part in kinds:
        for rank in ranks:
            assert rank[part].startswith("RankError: Accelerate's"), rank[part]
            assert "StatefulDataLoader" in rank[part]
            assert "through LoaderMixin" in rank[part]
    stateful, undivided = (
        [i for rank in ranks for i in rank[name]] for name in ("stateful", "undivided")
    )
    assert sorted(stateful) == list(range(NUM_SAMPLES))
    assert set(undivided) == set(range(NUM_SAMPLES))  # Accelerate's way: it repeats to fill
