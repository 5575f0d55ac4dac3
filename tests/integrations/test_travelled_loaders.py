"""`trainer.fit(model, loader)` as users write it: the loader is older than the ranks."""

import json
from pathlib import Path

import pytest

from tests.support.torchrun import run_program
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

PROGRAM = Path(__file__).parent / "programs" / "travelled.py"
NUM_SAMPLES, NUM_STEPS = 53, 6


# `tests/loader/test_travelled_loaders.py` has the same without a framework.
@pytest.mark.long
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("ddp", marks=needs("lightning")),
        pytest.param("ddp_fork", marks=needs("lightning")),
        pytest.param("notebook", marks=needs("accelerate")),
    ],
)
def test_the_ranks_share_what_a_loader_made_before_them_reads(launcher, tmp_path):
    env = {"GLOO_SOCKET_IFNAME": "lo", **OFFLINE}
    run_program(PROGRAM, launcher, tmp_path, timeout=TIMEOUT_S, env=env)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    epochs = list(zip(*(rank["train"] for rank in ranks), strict=True))
    assert len(epochs) == 2
    for epoch in epochs:
        assert [len(batches) for batches in epoch] == [NUM_STEPS, NUM_STEPS]
        ids = [i for step in zip(*epoch, strict=True) for batch in step for i in batch]
        assert sorted(ids[:NUM_SAMPLES]) == list(range(NUM_SAMPLES))
        assert ids[NUM_SAMPLES:] == ids[: 2 * 5 * NUM_STEPS - NUM_SAMPLES]  # the padding
    assert epochs[0] != epochs[1]
    if launcher != "notebook":
        # The trainer was told the length that it got.
        assert [rank["num_training_batches"] for rank in ranks] == [[NUM_STEPS]] * 2
        passes = list(zip(*(rank["validate"] for rank in ranks), strict=True))
        for validation in passes:
            together = [i for step in zip(*validation, strict=True) for b in step for i in b]
            assert together == list(range(NUM_SAMPLES))
        assert len(passes) == 2
