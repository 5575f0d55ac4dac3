"""The parts of the demo: its accounts must be able to come out wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import shardwise as sw
from examples.digits import ledger
from examples.digits.data import TEST_SHARDS, TRAIN_SHARDS, write_shards
from examples.digits.launch import Phase
from examples.digits.summary import summarise

ROOT = Path(__file__).resolve().parents[1]


def write_run(
    directory: Path,
    run: int,
    world_size: int,
    steps: dict[int, Sequence[int]],
    *,
    resumed_from: tuple[int, int] | None = None,
    accuracy: float | None = None,
    steps_per_epoch: int = 4,
) -> None:
    """Write what a run's ranks would: they share each step's ids in turn."""
    for rank in range(world_size):
        with ledger.Ledger(directory, run=run, rank=rank) as book:
            book.start(world_size=world_size, resumed_from=resumed_from)
            for step, ids in steps.items():
                epoch = (step - 1) // steps_per_epoch
                book.trained(epoch=epoch, step=step, ids=list(ids[rank::world_size]))
            if rank == 0 and accuracy is not None:
                book.tested(epoch=max(steps) // steps_per_epoch - 1, accuracy=accuracy)


CERTIFIED = ["epoch 0: every one of 24 samples exactly once"]
STEPS = {step: range(6 * (step - 1), 6 * step) for step in range(1, 5)}  # 24 samples, 4 steps


def test_samples_are_counted_over_kill_resume_and_change_of_ranks(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 2, {s: STEPS[s] for s in (1, 2, 3)})
    write_run(tmp_path, 2, 3, {s: STEPS[s] for s in (2, 3, 4)}, resumed_from=(1, 1))
    account = ledger.read(tmp_path)
    (use,) = account.epochs(24)
    assert (use.once, use.more, use.never, use.num_steps) == (24, 0, 0, 4)
    assert use.world_sizes == (2, 3)
    assert [(step.run.number, step.number) for step in account.undone()] == [(1, 2), (1, 3)]
    assert account.repeated_alike()


def test_a_sample_that_was_left_out_or_used_twice_shows(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 2, {**STEPS, 4: [18, 19, 20, 21, 22, 0]})
    (use,) = ledger.read(tmp_path).epochs(24)
    assert (use.once, use.more, use.never) == (22, 1, 1)


def test_a_run_that_was_killed_before_its_first_checkpoint_counts_for_nothing(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, 1, 2, {s: STEPS[s] for s in (1, 2)})
    write_run(tmp_path, 2, 3, {s: STEPS[s] for s in (2, 3)}, resumed_from=(1, 1))
    write_run(tmp_path, 3, 1, {s: STEPS[s] for s in (2, 3, 4)}, resumed_from=(1, 1))
    account = ledger.read(tmp_path)
    (use,) = account.epochs(24)
    assert (use.once, use.more, use.never) == (24, 0, 0)
    assert {step.run.number for step in account.undone()} == {1, 2}


def test_steps_that_were_done_again_with_other_samples_show(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 2, {1: STEPS[1], 2: STEPS[3]})
    write_run(tmp_path, 2, 2, {s: STEPS[s] for s in (2, 3, 4)}, resumed_from=(1, 1))
    assert not ledger.read(tmp_path).repeated_alike()


def test_a_line_that_a_kill_cut_short_does_not_count(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 1, STEPS)
    path = next(tmp_path.glob("*.jsonl"))
    path.write_text(path.read_text()[:-2])
    account = ledger.read(tmp_path)
    assert account.runs[0].last_step == 3


def test_ids_that_the_data_does_not_have_are_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 1, STEPS)
    with pytest.raises(ValueError, match=r"outside 0\.\.22"):
        ledger.read(tmp_path).epochs(23)


@pytest.mark.parametrize(
    ("steps", "accuracy", "certified", "passed"),
    [
        (STEPS, 0.96, CERTIFIED, True),
        (STEPS, 0.95, CERTIFIED, False),
        (STEPS, None, CERTIFIED, False),
        (STEPS, 1.0, [], False),
        (STEPS, 1.0, ["epoch 0: NOT every one"], False),
        (STEPS, 1.0, [*CERTIFIED, *CERTIFIED], False),
        ({**STEPS, 4: STEPS[3]}, 1.0, CERTIFIED, False),
    ],
)
def test_the_demo_fails_where_accuracy_certificate_or_a_sample_is_missing(
    tmp_path: Path,
    steps: dict[int, Sequence[int]],
    accuracy: float | None,
    certified: list[str],
    passed: bool,
) -> None:
    write_run(tmp_path, 1, 2, steps, accuracy=accuracy)
    phases = [Phase(1, world_size=2, kill_after=None)]
    account = ledger.read(tmp_path)
    summary = summarise(
        account, phases, num_samples=24, num_epochs=1, certified=certified, seconds=1.0
    )
    assert summary["passed"] is passed


def test_the_shards_hold_every_digit_once_in_uneven_shards(tmp_path: Path) -> None:
    write_shards(tmp_path)
    train, test = sw.tar(tmp_path / "train"), sw.tar(tmp_path / "test")
    assert train.shard_sizes.tolist() == list(TRAIN_SHARDS)
    assert test.shard_sizes.tolist() == list(TEST_SHARDS)
    keys = sorted(sample["__key__"] for data in (train, test) for sample in data)
    assert keys == [f"{i:04d}" for i in range(1797)]


def test_the_scripts_are_valid_bash() -> None:
    for name in ("demo", "test", ".ci/run", ".ci/environment.sh"):
        done = subprocess.run(["bash", "-n", name], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "what"),
    [
        ("demo", [], "kills it twice"),
        ("test", [], "all tests except the long ones"),
        ("test", ["--all"], "runs all tests in three"),
    ],
)
def test_the_scripts_say_first_what_they_do_how_long_it_takes_and_what_is_downloaded(
    script: str, arguments: list[str], what: str, tmp_path: Path
) -> None:
    # A fresh clone on a machine without Python: nothing can be begun.
    for name in ("demo", "test", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "basename"):
        (programs / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [programs / "bash", tmp_path / script, *arguments],
        env={"PATH": str(programs)},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    first, second, third = done.stdout.splitlines()
    assert what in first
    assert re.search(r"about \d+ minutes on two cores", first)
    assert re.search(r"downloads about [\d.]+ [MG]B of packages", second)
    assert "needs Python 3.11" in third
    assert done.returncode == 1


def test_the_demo_explains_itself_without_starting_anything() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.digits", "--help"],
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout
