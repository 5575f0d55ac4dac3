"""Two ranks and torch's own workers read a Lance table once, in the one order.

1,003 rows in 11 fragments, the last one of 3.
"""

import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.lance_tables import NUM_ROWS, make_table, merged
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "torch_workers.py"
GLOBAL_BATCH, SEED = 64, 5
# Two ranks, the number of workers of torch's DataLoader, their start method, and how often.
FORKED = [{"start": "fork", "workers": 2, "runs": 2}, {"start": None, "workers": 0, "runs": 1}]
ALL = [
    *FORKED,
    {"start": "fork", "workers": 3, "runs": 1},
    {"start": "spawn", "workers": 2, "runs": 1},
    {"start": "forkserver", "workers": 1, "runs": 1},
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("tables") / "rows.lance")


@pytest.mark.parametrize(
    "tasks", [FORKED, pytest.param(ALL, marks=pytest.mark.long)], ids=["forked", "all"]
)
def test_torchs_workers_of_two_ranks_give_the_one_order(table, tmp_path, tasks):
    loader = sw.DataLoader(
        sw.lance(table, columns=("id",)),
        batch_size=GLOBAL_BATCH,
        seed=SEED,
        shuffle=True,
        remainder="uneven",
        rank=0,
        world_size=1,
        executor="inline",
        output="numpy",
    )
    reference = [batch["id"].tolist() for batch in loader]
    assert sorted(i for step in reference for i in step) == list(range(NUM_ROWS))
    run_ranks(PROGRAM, table, tmp_path, json.dumps(tasks), nproc=2, timeout=280)
    ranks = [
        [json.loads(line) for line in (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1]) == sum(task["runs"] for task in tasks)
    for one, other in zip(*ranks, strict=True):
        steps = one["steps"], other["steps"]
        assert len(steps[0]) == len(steps[1]) == len(reference), one["task"]
        assert merged(steps) == reference, one["task"]
