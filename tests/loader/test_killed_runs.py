"""Runs that are killed and resumed on other numbers of ranks give the uninterrupted order."""

import json
import random
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.tars import make_shards
from tests.support.torchrun import torchrun

PROGRAM = Path(__file__).parent / "programs" / "killed.py"
GLOBAL_BATCH, NUM_EPOCHS, SEED = 12, 3, 20261
WORLD_SIZES = (2, 3, 1, 4, 2)


def uninterrupted(shards):
    """Ids in global order, by the `(epoch, position)` that a step ends at."""
    data = sw.tar(shards).select("cls").decode(cls=int)
    loader = sw.DataLoader(
        data,
        batch_size=GLOBAL_BATCH,
        shuffle=True,
        seed=7,
        remainder="uneven",
        rank=0,
        world_size=1,
        num_threads=0,
    )
    steps = []
    for _ in range(NUM_EPOCHS):
        for batch in loader:
            state = loader.state_dict()
            steps.append(((state["epoch"], state["position"]), batch["__index__"].tolist()))
    return steps


def given_by(directory, run, world_size, until):
    """The steps of one run that count: those that its last saved state knows of."""
    ranks = []
    for rank in range(world_size):
        lines = (directory / f"run-{run}-rank-{rank}.jsonl").read_text().splitlines()
        # A rank that was killed while it wrote leaves half a line, of a step that does not count.
        whole = [json.loads(line) for line in lines if line.endswith("}")]
        ranks.append([line for line in whole if tuple(line["after"]) <= until])
    assert len({len(lines) for lines in ranks}) == 1, "ranks differ in their steps"
    for step in zip(*ranks, strict=True):
        [after] = {tuple(line["after"]) for line in step}
        yield after, [i for line in step for i in line["ids"]]


# Many trainings, one after the other: minutes beside other work.
@pytest.mark.long
@pytest.mark.timeout(1000)
def test_runs_killed_at_random_steps_go_on_elsewhere_in_the_uninterrupted_order(tmp_path):
    shards = make_shards(tmp_path / "shards", range(6, 16))
    out = tmp_path / "out"
    out.mkdir()
    expected = uninterrupted(shards)
    draw = random.Random(SEED)
    steps = []
    for run, world_size in enumerate(WORLD_SIZES):
        is_last = run == len(WORLD_SIZES) - 1
        kill_after = -1 if is_last else draw.randrange(1, 6)
        done = torchrun(
            PROGRAM,
            tmp_path / "shards",
            out,
            str(run),
            str(GLOBAL_BATCH),
            str(NUM_EPOCHS),
            str(kill_after),
            nproc=world_size,
            timeout=300,
            check=False,
        )
        assert (done.returncode == 0) == is_last, done.stdout
        state = json.loads((out / "state.json").read_text())
        steps += given_by(out, run, world_size, (state["epoch"], state["position"]))
    assert steps == expected
