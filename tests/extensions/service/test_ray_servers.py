"""Servers as Ray's actors on a real cluster: the same batches, and nothing stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import shardwise as sw
from tests.support.ray_cluster import RayCluster, ray_cluster
from tests.support.server_process import end_with_parent
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    """A cluster with four cores, on two nodes if a test asks for no other number."""
    num_nodes = getattr(request, "param", 2)
    with ray_cluster(num_nodes=num_nodes, num_cpus=4 // num_nodes) as running:
        yield running


def start(cluster: RayCluster, scenario: str, argument: str = "") -> subprocess.Popen[str]:
    """A driver of `ray_driver`, which ends with this process."""
    module = "tests.extensions.service.ray_driver"
    return subprocess.Popen(
        [sys.executable, "-m", module, scenario, cluster.address, argument],
        cwd=ROOT,
        env={**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
    )


def result(driver: subprocess.Popen[str], word: str = "") -> Any:
    """What a driver found out, which must end well; Ray writes into its output, too."""
    out, _ = driver.communicate(word)
    assert driver.returncode == 0, f"the driver ended with {driver.returncode}: {out}"
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


def wait_until_nothing_is_left(cluster: RayCluster) -> None:
    """Ray's own idle workers may stay."""
    names = ("ray::BatchServerActor", "ray::ServerRegistry")
    wait_for(lambda: not any(each.startswith(names) for each in titles(cluster)))


def titles(cluster: RayCluster) -> list[str]:
    found = []
    for process in cluster.workers():
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()).strip())
    return found


@pytest.mark.parametrize("cluster", [1, pytest.param(2, marks=pytest.mark.long)], indirect=True)
def test_batches_of_servers_on_ray_are_the_inline_executors(cluster: RayCluster) -> None:
    found = result(start(cluster, "everything"))
    assert found["kills"] == 1
    assert "no such number" in found["error"][0]
    assert found["error"][1] is not None
    wait_until_nothing_is_left(cluster)


@pytest.mark.long
def test_servers_of_a_job_that_is_killed_end_and_those_who_shared_them_go_on(
    cluster: RayCluster,
) -> None:
    owner, other = start(cluster, "half", "shared"), None
    assert owner.stdout is not None
    addresses = json.loads(owner.stdout.readline())
    other = start(cluster, "half", "shared")
    assert other.stdout is not None
    assert json.loads(other.stdout.readline()) == addresses
    owner.kill()
    owner.communicate()
    found = result(other, "\n")
    assert found["before"] == addresses
    wait_until_nothing_is_left(cluster)


@pytest.mark.long
def test_servers_of_a_node_that_is_lost_are_started_on_another() -> None:
    with ray_cluster(num_nodes=2, num_cpus=2) as own:
        driver = start(own, "lost_node")
        assert driver.stdout is not None
        assert len(json.loads(driver.stdout.readline())) == 2
        own.kill_node()
        found = result(driver, "\n")
    assert found == {"made_here": 0}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_kills_that_ray_repairs_lose_and_double_nothing(cluster: RayCluster) -> None:
    found = result(start(cluster, "long_kills"))
    assert found["kills"] == 100
    wait_until_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give the addresses"),
        ({"addresses": "a:1", "ray": 1}, "not both"),
        ({"ray": 0}, "at least 1"),
        ({"ray": 1, "token_file": "x"}, "token_file"),
        ({"addresses": "a:1", "name": "x"}, "servers on Ray"),
        ({"ray": 1, "ray_options": {"num_cpus": -1}}, "num_cpus"),
    ],
)
def test_arguments_that_do_not_go_together_are_named(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sw.service(**arguments)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(sw.MissingExtraError, match=r"pip install 'shardwise\[ray\]'"):
        sw.service(ray=2)
