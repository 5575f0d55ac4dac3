"""Builds on a real Ray cluster of two nodes: the bytes of local ones, also where workers die."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from tests.extensions.build.program import run
from tests.extensions.build.test_kills import (
    GUARD_S,
    PATTERN,
    check_equal,
    let_it_make,
    shards_of,
)
from tests.support.ray_cluster import RAY_ENVIRONMENT, RayCluster, ray_cluster
from tests.support.torchrun import ROOT, run_program
from tests.support.trainers import needs
from tests.support.waiting import wait_for

pytestmark = needs("ray")
PROGRAM = "tests.extensions.build.ray_program"


@pytest.fixture(scope="module")
def cluster(no_orphans: None) -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    run(f"{directory}/{PATTERN}", 0)
    return directory


def scenario(name: str, directory: Path, cluster: RayCluster) -> Any:
    run_program(
        "-m", PROGRAM, name, directory, cluster.address,
        timeout=GUARD_S, env={**cluster.environment, "FACTOR_OF_TEST": "2"}, cwd=ROOT,
    )  # fmt: skip
    return json.loads((directory / f"{name}.json").read_text())


def test_a_build_on_two_nodes_has_the_bytes_of_a_local_one(tmp_path, cluster, undisturbed):
    found = scenario("whole", tmp_path, cluster)
    assert found["num_nodes"] == 2
    assert not found["is_connected"]
    assert "has other code of the functions of this build" in found["other_code"]
    expected = json.loads((undisturbed / "build.json").read_text())["report"]
    for name in ("in", "out", "filtered", "bytes", "failed", "shards"):
        assert found["report"][name] == expected[name]
    check_equal(tmp_path / "out", undisturbed)


@pytest.mark.long
def test_errors_and_deaths_are_said_as_they_are_of_local_processes(tmp_path, cluster):
    found = scenario("errors", tmp_path, cluster)
    kind, message, index = found["failing"]
    assert (kind, index) == ("DataError", 13)
    assert "failing raised ZeroDivisionError" in message
    assert "ray_program.py" in message
    kind, message, _ = found["deadly"]
    assert kind == "WorkerError"
    assert "died 5 times while they made shard 2" in message
    assert found["nobody"][0] == "WorkerError"
    assert "no cluster answers (" in found["nobody"][1]
    assert found["another"][0] == "ValueError"
    assert "is connected to the Ray cluster at" in found["another"][1]
    assert found["is_connected"]
    # What the death left is swept by the next build, which makes what is missing.
    assert list((tmp_path / "deadly" / ".build").glob("staging-*"))
    with pytest.raises(sw.StateError, match="another build"):
        sw.build(range(20), f"{tmp_path}/deadly/{{shard}}.tar", num_workers=0)
    assert not list((tmp_path / "deadly" / ".build").glob("staging-*"))


@pytest.mark.long
def test_the_commands_build_on_ray(tmp_path, cluster):
    found = scenario("commands", tmp_path, cluster)
    assert {name: report["out"] for name, report in found.items()} == {
        "build": 20,
        "convert": 20,
        "reshard": 20,
    }
    assert found["reshard"]["shards"] == 3
    assert len(sw.parquet(f"{tmp_path}/table/*.parquet")) == 20


@pytest.mark.long
def test_a_second_builder_is_refused_while_one_on_ray_runs(tmp_path, cluster):
    with gated_driver(tmp_path, cluster) as process:
        wait_for(lambda: any(tmp_path.glob("begun-*")), process=process)
        with pytest.raises(sw.StateError, match="another build writes to"):
            sw.build(range(4), f"{tmp_path}/out/{{shard}}.tar", num_workers=0)
        (tmp_path / "gate").touch()
        assert process.wait(GUARD_S) == 0
    assert len(shards_of(tmp_path / "out")) == 4
    assert not (tmp_path / "out" / ".build").exists()


@pytest.mark.long
def test_a_build_loses_a_node_and_goes_on(tmp_path, no_orphans):
    with ray_cluster() as cluster, gated_driver(tmp_path, cluster) as process:
        # A core a node: one of the two is made there.
        wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 2, process=process)
        cluster.kill_node()
        (tmp_path / "gate").touch()
        assert process.wait(GUARD_S) == 0
    assert len(shards_of(tmp_path / "out")) == 4
    assert not (tmp_path / "out" / ".build").exists()


@pytest.mark.long
def test_an_interrupted_build_leaves_no_task_and_may_be_called_again(tmp_path, cluster):
    with gated_driver(tmp_path, cluster) as process:
        wait_for(lambda: any(tmp_path.glob("begun-*")), process=process)
        # Python drops an interrupt that is raised in a destructor: a user presses Ctrl-C again.
        deadline = time.monotonic() + GUARD_S
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GUARD_S / 4)
        assert process.poll() == -signal.SIGINT, (tmp_path / "driver.log").read_text()
    assert not list((tmp_path / "out" / ".build").glob("staging-*"))
    assert not cluster.workers(running="build")
    with gated_driver(tmp_path, cluster) as process:
        (tmp_path / "gate").touch()
        assert process.wait(GUARD_S) == 0
    assert len(shards_of(tmp_path / "out")) == 4


@contextlib.contextmanager
def driver(
    directory: Path, module: str, *arguments: str, cluster: RayCluster
) -> Iterator[subprocess.Popen[bytes]]:
    """A program on the cluster; it is killed at the end of the block if it runs then."""
    with (directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **cluster.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def gated_driver(
    directory: Path, cluster: RayCluster
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A build of four shards, each of which waits for the file "gate"."""
    return driver(directory, PROGRAM, "gate", str(directory), cluster.address, cluster=cluster)


def kill_at_random(directory: Path, out: Path, cluster: RayCluster, rng: random.Random) -> None:
    """Let a builder make some shards, then kill up to three of Ray's workers, or itself."""
    goal, kills = len(shards_of(out)), rng.randint(1, 3)
    arguments = (f"{out}/{PATTERN}", cluster.address)
    with driver(
        directory, "tests.extensions.build.program", *arguments, cluster=cluster
    ) as process:
        for _ in range(kills):
            goal += rng.randint(0, 12)
            let_it_make(goal, out, process)
            # One that makes a shard, if there is one just now.
            workers = cluster.workers(running="build") or cluster.workers()
            for each in rng.sample(workers, min(1, len(workers))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        if rng.random() < 0.3:
            process.kill()
            process.wait(GUARD_S)
        else:
            # The builder goes on without them.
            log = directory / "driver.log"
            assert process.wait(GUARD_S) == 0, log.read_text(errors="replace")[-3000:]


def killed_again_and_again(directory: Path, undisturbed: Path, cluster: RayCluster, seed: int):
    rng, out = random.Random(seed), directory / "out"
    for _ in range(rng.randint(1, 2)):
        kill_at_random(directory, out, cluster, rng)
    report = run(f"{out}/{PATTERN}", 0)
    assert (report["in"], report["failed"]) == (400, {"ValueError": 7})
    check_equal(out, undisturbed)


def test_a_build_whose_ray_workers_were_killed_ends_in_the_same_bytes(
    tmp_path, cluster, undisturbed
):
    killed_again_and_again(tmp_path, undisturbed, cluster, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_twenty_more_builds_with_kills_on_ray_end_in_the_same_bytes(
    tmp_path, cluster, undisturbed, seed
):
    killed_again_and_again(tmp_path, undisturbed, cluster, seed)


@pytest.mark.long
def test_without_a_cluster_one_is_started_and_ended(tmp_path, undisturbed):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as sockets:
        run_program(
            "-m", PROGRAM, "started", tmp_path, "-",
            timeout=GUARD_S, env={**RAY_ENVIRONMENT, "RAY_TMPDIR": sockets}, cwd=ROOT,
        )  # fmt: skip
    assert not json.loads((tmp_path / "started.json").read_text())["is_connected"]
    check_equal(tmp_path / "out", undisturbed)
