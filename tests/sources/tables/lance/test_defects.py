"""What went wrong in released loaders of Lance and LanceDB, one named test each: not here.

1,003 rows in 11 fragments, the last one of 3, as in the reports.
"""

import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwise as sw
from tests.support.lance_tables import NUM_ROWS, make_table, merged
from tests.support.torchrun import torchrun

PROGRAM = Path(__file__).parent / "programs" / "torch_workers.py"
GLOBAL_BATCH, SEED = 64, 5
# Two ranks, each with so many workers of torch's DataLoader, started so, so many times.
TASKS = [
    {"start": "fork", "workers": 2, "runs": 2},
    {"start": "fork", "workers": 3, "runs": 1},
    {"start": "spawn", "workers": 2, "runs": 1},
    {"start": "forkserver", "workers": 1, "runs": 1},
    {"start": None, "workers": 0, "runs": 1},
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("tables") / "rows.lance")


def load(source, *, epochs=1, **options):
    """Ids by epoch and batch, of one rank."""
    given = {
        "batch_size": GLOBAL_BATCH,
        "seed": SEED,
        "shuffle": True,
        "remainder": "uneven",
        "rank": 0,
        "world_size": 1,
        "executor": "inline",
        "output": "numpy",
    }
    ds = source if isinstance(source, sw.Dataset) else sw.lance(source, columns=("id",))
    loader = sw.DataLoader(ds, **{**given, **options})
    return [[batch["id"].tolist() for batch in loader] for _ in range(epochs)]


def flat(batches):
    return [i for batch in batches for i in batch]


@pytest.fixture(scope="module")
def runs(table, tmp_path_factory):
    """What two ranks read, a run each: the task, and the steps of each rank."""
    out = tmp_path_factory.mktemp("ranks")
    torchrun(PROGRAM, table, out, json.dumps(TASKS), nproc=2, timeout=280)
    ranks = [
        [json.loads(line) for line in (out / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1]) == sum(task["runs"] for task in TASKS)
    return [(one["task"], [one["steps"], two["steps"]]) for one, two in zip(*ranks, strict=True)]


def of_start(runs, start):
    return [steps for task, steps in runs if task["start"] == start]


# Lance


def test_lance_workers_started_by_spawn_gave_both_ranks_all_rows(runs):
    for start in ("spawn", "forkserver"):
        for one, other in of_start(runs, start):
            assert sorted(flat(one) + flat(other)) == list(range(NUM_ROWS))


def test_lance_samplers_from_torch_repeated_1003_rows_with_two_workers(runs):
    for _, (one, other) in runs:
        assert not set(flat(one)) & set(flat(other))
        assert len(flat(one) + flat(other)) == NUM_ROWS


def test_lance_forked_workers_were_lost_in_one_run_of_three(runs):
    assert len(of_start(runs, "fork")) == 3
    for steps in of_start(runs, "fork"):
        assert sorted(flat(merged(steps))) == list(range(NUM_ROWS))


def test_lance_ranks_ended_after_24_and_16_batches(runs, table):
    for _, (one, other) in runs:
        assert len(one) == len(other) == -(-NUM_ROWS // GLOBAL_BATCH)
    for remainder in ("drop", "pad", "uneven"):
        given = {
            len(load(table, batch_size=32, rank=rank, world_size=3, remainder=remainder)[0])
            for rank in range(3)
        }
        assert len(given) == 1


def test_lance_rank_and_world_size_in_the_environment_were_not_looked_at(table, monkeypatch):
    read = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        read += flat(load(table, rank=None, world_size=None)[0])
    assert sorted(read) == list(range(NUM_ROWS))


def test_lance_a_sample_of_500_rows_had_repeats_and_gaps(table):
    epochs = [[], []]
    for rank in range(4):
        for epoch, batches in enumerate(
            load(table, epochs=2, epoch_size=500, rank=rank, world_size=4)
        ):
            epochs[epoch] += flat(batches)
    assert [len(epoch) for epoch in epochs] == [500, 500]
    # The second one goes on where the first one ended.
    assert len(set(epochs[0] + epochs[1])) == 1000


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("id >= 0", range(NUM_ROWS)),
        ("id % 7 = 0", range(0, NUM_ROWS, 7)),
        ("id > 999", range(1000, NUM_ROWS)),
    ],
)
def test_lance_a_filter_lost_rows_or_crashed_where_a_batch_was_smaller_than_the_ranks(
    table, world_size, condition, wanted
):
    ds = sw.lance(table, columns=("id",), filter=condition)
    read = []
    for rank in range(world_size):
        read += flat(load(ds, batch_size=16, rank=rank, world_size=world_size)[0])
    assert sorted(read) == list(wanted)


def test_lance_set_epoch_changed_nothing(table):
    first, second = load(table, epochs=2)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(NUM_ROWS))
    assert first != second
    loader = sw.DataLoader(
        sw.lance(table, columns=("id",)),
        batch_size=GLOBAL_BATCH,
        seed=SEED,
        shuffle=True,
        remainder="uneven",
        executor="inline",
        output="numpy",
        rank=0,
        world_size=1,
    )
    loader.set_epoch(1)
    assert [batch["id"].tolist() for batch in loader] == second


def test_lance_the_programs_random_state_was_overwritten(table):
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)

    def states():
        mersenne = np.random.get_state()[1]
        return random.getstate(), mersenne.tolist(), torch.get_rng_state().tolist()

    before = states()
    load(table, epochs=2)
    assert states() == before


def test_lance_rows_of_a_batch_stayed_neighbours(table):
    batches = load(table)[0]
    steps = np.concatenate([np.abs(np.diff(batch)) for batch in batches])
    assert (steps == 1).mean() < 0.05


def test_lance_one_fragment_went_to_one_rank_of_four(tmp_path):
    path = make_table(tmp_path / "t.lance", max_rows_per_file=5000)
    given = [len(flat(load(path, batch_size=8, rank=rank, world_size=4)[0])) for rank in range(4)]
    assert sum(given) == NUM_ROWS
    assert max(given) - min(given) <= 1


@pytest.mark.parametrize(("num_rows", "world_size"), [(10, 8), (9, 4)])
def test_lance_ranks_without_a_batch_were_promised_one(tmp_path, num_rows, world_size):
    path = make_table(tmp_path / "t.lance", num_rows=num_rows)
    ds = sw.lance(path, columns=("id",))
    read = []
    for rank in range(world_size):
        options = {"batch_size": 2, "rank": rank, "world_size": world_size, "remainder": "uneven"}
        loader = sw.DataLoader(ds, executor="inline", output="numpy", **options)
        batches = [batch["id"].tolist() for batch in loader]
        assert len(batches) == len(loader)
        read += flat(batches)
    assert sorted(read) == list(range(num_rows))


def test_lance_had_no_length_and_no_state(table):
    loader = sw.DataLoader(
        sw.lance(table, columns=("id",)),
        batch_size=50,
        shuffle=True,
        executor="inline",
        output="numpy",
        rank=0,
        world_size=1,
    )
    assert len(loader) == NUM_ROWS // 50
    batches = [batch["id"].tolist() for batch in loader]
    for stop in (1, 11, 19):
        loader.load_state_dict({**loader.state_dict()})
        loader.set_epoch(0)
        iterator = iter(loader)
        assert [next(iterator)["id"].tolist() for _ in range(stop)] == batches[:stop]
        state = json.loads(json.dumps(loader.state_dict()))
        iterator.close()
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == batches[stop:]


# LanceDB


def test_lancedb_the_global_steps_were_others_as_soon_as_there_were_workers(runs, table):
    reference = load(table)[0]
    assert len(reference) == 16
    for _, steps in runs:
        assert merged(steps) == reference
    for world_size in (1, 2, 4, 8):
        by_rank = [
            load(table, batch_size=GLOBAL_BATCH // world_size, rank=rank, world_size=world_size)[0]
            for rank in range(world_size)
        ]
        assert merged(by_rank) == reference


def test_lancedb_up_to_107_of_1003_rows_were_dropped_each_epoch(table):
    for world_size in (1, 3, 8):
        for batch_size in (1, 16):
            read = []
            for rank in range(world_size):
                read += flat(
                    load(table, batch_size=batch_size, rank=rank, world_size=world_size)[0]
                )
            assert sorted(read) == list(range(NUM_ROWS))


def test_lancedb_a_plan_of_16_bytes_a_row_went_to_each_worker(table):
    ds = sw.lance(table)
    ds[0]
    without_rows = len(pickle.dumps(ds))
    iterable = sw.torch.IterableDataset(ds, batch_size=8, shuffle=True, rank=0, world_size=1)
    small = sw.wrap([1])
    of_one = sw.torch.IterableDataset(small, batch_size=1, rank=0, world_size=1)
    fixed = len(pickle.dumps(of_one)) - len(pickle.dumps(small))
    assert len(pickle.dumps(iterable)) < without_rows + fixed + 8 * NUM_ROWS


def test_lancedb_a_state_was_refused_in_the_middle_of_a_logical_step(table):
    loader = sw.DataLoader(
        sw.lance(table, columns=("id",)),
        batch_size=31,
        shuffle=True,
        executor="inline",
        output="numpy",
        rank=1,
        world_size=2,
    )
    for _, _batch in zip(range(12), loader, strict=False):
        assert loader.state_dict()
