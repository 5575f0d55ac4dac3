"""Each example of a trainer on two ranks: exact epochs, and a resume that nobody can tell."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from examples.trainers.parts import train_loader
from tests.support.torchrun import run_program, torchrun
from tests.support.trainers import (
    OFFLINE,
    TIMEOUT_S,
    assert_certified,
    assert_exact,
    global_steps,
    launch,
    needs,
    read_ledgers,
)

# The first epoch has 15 steps: 14 of 100 samples, and one of 41 with repeats.
STOP_AFTER = 6
PROGRAMS = Path(__file__).parent / "programs"
NUM_TRAIN, NUM_TESTS = 1441, 356


@pytest.mark.long
def test_ddp_goes_on_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path) -> None:
    launch("ddp", shards, tmp_path, stop_after=STOP_AFTER)
    assert_exact(tmp_path)


@pytest.mark.long
def test_a_program_ends_with_the_certificate(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").symlink_to(shards)
    for more in (["--stop-after", "6"], []):
        done = torchrun(
            "-m", "examples.trainers.ddp", tmp_path, *more,
            nproc=2, env=OFFLINE, timeout=TIMEOUT_S,
        )  # fmt: skip
    verdicts = [f"epoch {e}: every one of 1,441 samples exactly once" for e in range(2)]
    assert all(verdict in done.stdout for verdict in verdicts)


@pytest.mark.long
@needs("accelerate")
def test_accelerate_divides_nothing_twice_and_saves_the_position(
    shards: Path, tmp_path: Path
) -> None:
    # Gradients are summed over 4 batches, and the sum ends with the epoch.
    results = launch("with_accelerate", shards, tmp_path, stop_after=8)
    assert_exact(tmp_path)
    accuracies = [rank[part] for rank in results for part in ("whole", "rest")]
    assert len(set(accuracies)) == 1, "one metric on all ranks, and after the resume"


@pytest.mark.long  # one process does so by default: docs/tutorial-images.md
@needs("lightning")
def test_lightning_loses_no_batch_on_resume(shards: Path, tmp_path: Path) -> None:
    results = launch("with_lightning", shards, tmp_path, stop_after=STOP_AFTER)
    assert_exact(tmp_path)
    for part in ("whole", "rest"):
        tested = [i for rank in results for i in rank[part]]
        assert sorted(tested) == list(range(NUM_TESTS)), "each validation sample once"


@pytest.mark.long
@needs("transformers")
def test_the_hugging_face_trainer_resumes_without_replaying(shards: Path, tmp_path: Path) -> None:
    # Two updates of 4 batches, in the middle of the epoch's 15.
    results = launch("with_transformers", shards, tmp_path, stop_after=2)
    assert_exact(tmp_path)
    assert results[0] == results[1], "one metric on all ranks"


@pytest.mark.long
@needs("ray")
def test_ray_trains_new_workers_go_on_where_the_failed_ones_were(
    shards: Path, tmp_path: Path
) -> None:
    (tmp_path / "shards").symlink_to(shards)
    # Unix sockets lie in it, whose paths must be short.
    sockets = tempfile.mkdtemp(prefix="ray")
    try:
        program = PROGRAMS / "ray_driver.py"
        run_program(program, tmp_path, STOP_AFTER, sockets, timeout=TIMEOUT_S, env=OFFLINE)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    assert_certified(tmp_path)
    # Ray's workers take long to start: the training that does not fail is only read, and here.
    for rank, ledger in enumerate(read_ledgers(tmp_path)):
        loader = train_loader(tmp_path, rank=rank, world_size=2, output="numpy", coverage=None)
        batches = [batch["__index__"][batch["__valid__"]] for _ in range(2) for batch in loader]
        assert [line["ids"] for line in ledger] == [ids.tolist() for ids in batches]
        assert [line["epoch"] for line in ledger] == [0] * 15 + [1] * 15


@pytest.mark.long
@needs("deepspeed")
def test_deepspeed_keeps_the_position_in_its_checkpoint(shards: Path, tmp_path: Path) -> None:
    launch("with_deepspeed", shards, tmp_path, stop_after=STOP_AFTER)
    assert_exact(tmp_path)


@pytest.mark.long
def test_a_distributed_checkpoint_of_two_ranks_goes_on_with_three(
    shards: Path, tmp_path: Path
) -> None:
    launch("fsdp2", shards, tmp_path, stop_after=STOP_AFTER, parts="whole,first")
    launch("fsdp2", shards, tmp_path, stop_after=0, parts="rest", nproc=3)
    whole, parts = global_steps(tmp_path / "whole", 2), global_steps(tmp_path / "parts", 3)
    assert parts == whole, "the global batches, one after the other"
    for epoch in range(2):
        ids = [i for number, step in whole if number == epoch for i in step]
        assert sorted(ids) == list(range(NUM_TRAIN))
    assert_certified(tmp_path / "parts")


@pytest.mark.long
def test_ranks_of_one_tensor_parallel_group_get_equal_batches(shards: Path, tmp_path: Path) -> None:
    launch("tensor_parallel", shards, tmp_path, stop_after=STOP_AFTER, parts="first", nproc=4)
    first, its_peer, other, others_peer = read_ledgers(tmp_path / "parts", 4)
    assert len(first) == STOP_AFTER
    # Loss and all: the two hold one model between them.
    assert first == its_peer
    assert other == others_peer
    ids = [i for ledger in (first, other) for line in ledger for i in line["ids"]]
    assert len(ids) == len(set(ids)) == STOP_AFTER * 100
