"""Ranks x workers x start methods x remainders x shuffles, in real processes.

Every combination must give each sample once, equal steps on all ranks, and the one order that a
single reader without torch sees. A launch goes through many configurations, because
importing torch costs more than reading the shards.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.ranks import run_ranks
from tests.support.tars import make_shards
from tests.support.torchrun import torchrun
from tests.torch_layer.programs.matrix import BATCH_SIZE, NUM_EPOCHS, SEED

PROGRAMS = Path(__file__).parent / "programs"
SIZES = range(6, 16)  # 10 shards: no number of ranks up to 4 but 1 and 2 divides them
NUM_SAMPLES = sum(SIZES)
WORKERS = (0, 1, 2, 3)
REMAINDERS = ("drop", "pad", "uneven")
SHUFFLES = ("full", "window")
# Only a guard against a hang: on a quiet machine each test takes seconds.
TIMEOUT_S = 540

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def configuration(workers, remainder, shuffle, *, start="fork", persistent=True, group=False):
    return {
        "workers": workers,
        "start": start,
        "remainder": remainder,
        "shuffle": shuffle,
        "persistent": persistent,
        "group": group,
    }


def whole_product():
    """Forked workers: all of workers x remainders x shuffles; the other two switches alternate."""
    product = itertools.product(WORKERS, REMAINDERS, SHUFFLES)
    for number, (workers, remainder, shuffle) in enumerate(product):
        yield configuration(
            workers, remainder, shuffle, persistent=number % 4 != 0, group=number % 2 == 1
        )


def pairs():
    """Forked workers: workers x remainders, each shuffle with each of both."""
    for number, (workers, remainder) in enumerate(itertools.product(WORKERS, REMAINDERS)):
        shuffle = SHUFFLES[(number + number // 3) % 2]
        yield configuration(workers, remainder, shuffle, group=number % 2 == 1)


def forkservers():
    """Every pair of values of two switches at least once."""
    yield configuration(1, "drop", "window", start="forkserver")
    yield configuration(2, "pad", "full", start="forkserver", group=True)
    yield configuration(3, "uneven", "window", start="forkserver", group=True)
    yield configuration(2, "drop", "full", start="forkserver", persistent=False)


# Spawned workers import torch anew: few, and kept for all epochs.
SPAWN = configuration(2, "uneven", "full", start="spawn", group=True)
# Each value of each switch at least once, but forkserver: as in spawned workers, which import torch
# anew, the dataset comes by pickle.
FEW = {
    1: [configuration(1, "uneven", "full", start="spawn", group=True)],
    2: [
        configuration(0, "drop", "full"),
        configuration(1, "pad", "window", persistent=False),
        configuration(2, "uneven", "window", group=True),
    ],
    # The meshes need four ranks.
    4: [configuration(0, "pad", "full", group=True), configuration(2, "uneven", "window")],
}
ALL = {
    1: [*pairs(), configuration(1, "pad", "window", start="spawn")],
    2: [*whole_product(), *forkservers(), SPAWN],
    3: [*whole_product()],
    4: [*pairs(), configuration(3, "uneven", "window", start="forkserver", group=True)],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    make_shards(directory, SIZES)
    len(sw.tar(directory))  # the ranks find the index ready
    return directory


@pytest.fixture(scope="module")
def orders(shards):
    """The global order by shuffle and epoch, as a single reader without torch sees it."""
    found = {}
    for shuffle in SHUFFLES:
        loader = sw.DataLoader(
            sw.tar(shards).select(),
            batch_size=BATCH_SIZE,
            shuffle=shuffle,
            seed=SEED,
            remainder="uneven",
            output="numpy",
            executor="inline",
        )
        found[shuffle] = [
            [i for batch in loader for i in batch["__index__"].tolist()] for _ in range(NUM_EPOCHS)
        ]
    return found


def test_the_reference_order_has_each_sample_once_and_is_another_in_each_epoch(orders):
    for epochs in orders.values():
        for order in epochs:
            assert sorted(order) == list(range(NUM_SAMPLES))
        assert len({tuple(order) for order in epochs}) == NUM_EPOCHS


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def merged(batches_by_rank):
    """All ranks' batches as one sequence of (sample, valid), rank after rank in each step."""
    steps = [len(batches) for batches in batches_by_rank]
    assert len(set(steps)) == 1, f"unequal steps: {steps}"
    sequence = []
    for step in zip(*batches_by_rank, strict=True):
        for ids, valid in step:
            sequence += zip(ids, valid if valid is not None else [True] * len(ids), strict=True)
    return sequence


def check_epoch(batches_by_rank, order, remainder, world_size):
    sequence = merged(batches_by_rank)
    real = [sample for sample, valid in sequence if valid]
    global_batch = BATCH_SIZE * world_size
    if remainder == "drop":
        assert real == order[: NUM_SAMPLES - NUM_SAMPLES % global_batch]
    else:
        assert real == order
    if remainder == "pad":
        assert len(sequence) == -(-NUM_SAMPLES // global_batch) * global_batch
    else:
        assert len(sequence) == len(real)


@pytest.mark.parametrize(
    ("world_size", "configurations"),
    [
        *(pytest.param(size, few, id=f"{size}-few") for size, few in FEW.items()),
        *(
            pytest.param(size, each, id=str(size), marks=pytest.mark.long)
            for size, each in ALL.items()
        ),
    ],
)
def test_each_sample_comes_once_in_equal_steps_and_one_order(
    world_size, configurations, shards, orders, tmp_path
):
    todo = tmp_path / "todo.json"
    todo.write_text(json.dumps(configurations))
    # All of two ranks' are torchrun's own; others share the import of torch.
    launch = torchrun if configurations is ALL[2] else run_ranks
    launch(PROGRAMS / "matrix.py", shards, tmp_path, todo, nproc=world_size, timeout=TIMEOUT_S)
    ranks = [records(tmp_path / f"rank-{rank}.jsonl") for rank in range(world_size)]
    for number, expected in enumerate(configurations):
        by_rank = [rank[number] for rank in ranks]
        assert [record["configuration"] for record in by_rank] == [expected] * world_size
        check_configuration(by_rank, orders)
    check_samplers([rank[-2]["samplers"] for rank in ranks], orders)
    if world_size == 4:
        check_meshes([rank[-1]["meshes"] for rank in ranks], orders)


def check_configuration(by_rank, orders):
    what, world_size = by_rank[0]["configuration"], len(by_rank)
    assert [record["rank"] for record in by_rank] == list(range(world_size)), what
    assert {record["world_size"] for record in by_rank} == {world_size}, what
    for epoch in range(NUM_EPOCHS):
        batches = [record["epochs"][epoch] for record in by_rank]
        try:
            check_epoch(batches, orders[what["shuffle"]][epoch], what["remainder"], world_size)
        except AssertionError as error:
            raise AssertionError(f"{what}, epoch {epoch}") from error


def check_samplers(by_rank, orders):
    """Equal lengths that are kept, and the global order, over all ranks."""
    world_size = len(by_rank)
    assert [record["rank"] for record in by_rank] == list(range(world_size))
    for which, drop_last in enumerate((False, True)):
        distributed = [record["distributed"][which] for record in by_rank]
        length = NUM_SAMPLES // world_size if drop_last else -(-NUM_SAMPLES // world_size)
        assert {record["len"] for record in distributed} == {length}
        for epoch in range(NUM_EPOCHS):
            singles = [
                [([i], [v]) for i, v in zip(record["epochs"][epoch], record["valid"], strict=True)]
                for record in distributed
            ]
            real = [sample for sample, valid in merged(singles) if valid]
            expected = orders["window"][epoch]
            assert real == (expected[: length * world_size] if drop_last else expected)
    batches = [[(ids, None) for ids in record["batches"]] for record in by_rank]
    check_epoch(batches, orders["window"][0], "drop", world_size)


def check_meshes(by_rank, orders):
    """A group, or one dimension of a mesh, divides the data instead of the world."""
    order = orders["full"][0]
    for record in by_rank:
        assert record["mesh"]["world_size"] == 2
        assert record["refused"].startswith("group is a device mesh of 2 dimensions")
    # Ranks 0 and 1 are one model's: they read the same, and so do 2 and 3.
    assert [record["mesh"]["rank"] for record in by_rank] == [0, 0, 1, 1]
    batches = [record["mesh"]["batches"] for record in by_rank]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    check_epoch([batches[0], batches[2]], order, "uneven", 2)
    # A group of three: its members share the data, the fourth is turned away.
    check_epoch([by_rank[i]["group"]["batches"] for i in (0, 1, 3)], order, "uneven", 3)
    assert "member" in by_rank[2]["group"]["error"]
