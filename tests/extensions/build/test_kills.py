"""Builders and their workers killed at any moment: the same bytes, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardwise as sw
from tests.extensions.build.program import run
from tests.support.waiting import wait_for

PATTERN = "{shard:03d}.tar"
GUARD_S = 120


def shards_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.tar"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    run(f"{directory}/{PATTERN}", 0)
    return directory


def start(directory: Path, num_workers: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.extensions.build.program",
            f"{directory}/{PATTERN}",
            str(num_workers),
        ]
    )


def let_it_make(goal: int, directory: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a builder has made so many shards, or has ended."""
    wait_for(lambda: process.poll() is not None or len(list(directory.glob("*.tar"))) >= goal)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes of a builder that make shards; others belong to multiprocessing."""
    found = []
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def kill_at_random(directory: Path, rng: random.Random) -> None:
    """Let a builder make some shards, then kill it, or a worker of it."""
    process, goal = start(directory, 2), len(shards_of(directory)) + rng.randint(0, 12)
    let_it_make(goal, directory, process)
    time.sleep(rng.uniform(0, 0.02))
    workers = workers_of(process)
    if workers and rng.random() < 0.5:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)
        # The builder goes on without it.
        assert process.wait(GUARD_S) == 0
    else:
        process.kill()
        process.wait(GUARD_S)


def check_equal(directory: Path, undisturbed: Path) -> None:
    assert shards_of(directory) == shards_of(undisturbed)
    assert {path.name for path in directory.iterdir()} == {
        path.name for path in undisturbed.iterdir()
    }
    ours, theirs = (sw.tar(f"{each}/manifest.swm") for each in (directory, undisturbed))
    assert ours.fingerprint == theirs.fingerprint
    assert ours[len(ours) - 1] == theirs[len(theirs) - 1]


def killed_again_and_again(directory: Path, undisturbed: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        kill_at_random(directory, rng)
    report = run(f"{directory}/{PATTERN}", 0)
    assert (report["in"], report["failed"]) == (400, {"ValueError": 7})
    check_equal(directory, undisturbed)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 22))]
)
def test_a_build_that_was_killed_ends_in_the_same_bytes_with_nothing_left(
    tmp_path, undisturbed, seed
):
    killed_again_and_again(tmp_path, undisturbed, seed)


def test_the_workers_end_with_a_builder_that_is_killed(tmp_path):
    process = start(tmp_path, 2)
    wait_for(lambda: len(workers_of(process)) == 2, process=process)
    wait_for(lambda: any(tmp_path.glob("*.tar")), process=process)
    workers = workers_of(process)
    process.kill()
    process.wait(GUARD_S)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_a_second_builder_of_a_directory_is_refused_while_the_first_one_runs(tmp_path, undisturbed):
    process = start(tmp_path, 1)
    try:
        wait_for(lambda: list(tmp_path.glob("*.tar")), process=process)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(sw.StateError, match="another build writes to"):
            run(f"{tmp_path}/{PATTERN}", 0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.wait()
    check_equal(tmp_path, undisturbed)
