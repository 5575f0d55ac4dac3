"""Nodes find each other under each launcher, by the store of the process group."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.share.test_shared_cache import NODE, arguments, lines_and_state
from tests.support.ray_cluster import RAY_ENVIRONMENT
from tests.support.server_process import free_port
from tests.support.servers import S3Server
from tests.support.torchrun import PYTHON_PATH, environment, run_program, torchrun
from tests.support.trainers import TIMEOUT_S, needs

pytestmark = pytest.mark.long


def run_torchrun(given: dict[str, Any]) -> None:
    torchrun(NODE, json.dumps(given), nproc=2)


def _run_both(given: dict[str, Any], variables: list[dict[str, str]]) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, NODE, json.dumps(given)],
            env=environment({"GLOO_SOCKET_IFNAME": "lo", **place, **each}),
        )
        for each in variables
    ]
    try:
        assert [each.wait(120) for each in ranks] == [0, 0]
    finally:
        for each in ranks:
            each.kill()
            each.wait()


def run_slurm(given: dict[str, Any]) -> None:
    """As srun starts two tasks."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    _run_both(given, [{**step, "SLURM_PROCID": str(rank)} for rank in range(2)])


def run_mpi(given: dict[str, Any]) -> None:
    """By mpirun where there is one; else as it starts two ranks."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        size = {"OMPI_COMM_WORLD_SIZE": "2"}
        _run_both(given, [{**size, "OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(2)])
        return
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    subprocess.run(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, NODE,
         json.dumps(given)],
        env=environment({"GLOO_SOCKET_IFNAME": "lo", **place}), check=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def run_ray(given: dict[str, Any]) -> None:
    program = NODE.with_name("ray_nodes.py")
    env = {**RAY_ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PYTHON_PATH}
    run_program(program, json.dumps(given), timeout=TIMEOUT_S, env=env)


@pytest.mark.parametrize(
    "run", [run_torchrun, run_slurm, run_mpi, pytest.param(run_ray, marks=needs("ray"))]
)
def test_nodes_of_a_launcher_share(s3: S3Server, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    prefix = run.__name__.replace("_", "-")
    run(arguments(s3, prefix, tmp_path, 2, epochs=2, shuffle="full", out=str(out)))
    (first, second), _ = lines_and_state(s3, prefix, out.read_text())
    assert first["is_exact"]
    assert second["is_exact"]
    assert first["ratio"] <= 1.03
    assert second["ratio"] <= 0.03
    assert all(each["peers"] > 0 for each in first["from"])
