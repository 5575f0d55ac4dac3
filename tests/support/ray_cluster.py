"""A real Ray cluster on the loopback, of two nodes with one core each, that is sure to end.

It is a program of its own, so that no process of a test is a node: `ray_cluster()` starts it in a
folder of its own (two can run at once), and kills all that came of it. It ends with its test too,
however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.support.server_process import end_with_parent
from tests.support.torchrun import PYTHON_PATH, ROOT

START_S = 240
# What a raylet starts beside its workers.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
# For drivers, too.
RAY_ENVIRONMENT = {
    # Nothing is reported to other machines.
    "RAY_USAGE_STATS_ENABLED": "0",
    # On Linux as elsewhere: a node's address is that of the loopback, not of a network.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # No worker is killed because the machine's memory is full of other things.
    "RAY_memory_monitor_refresh_ms": "0",
}
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class RayCluster:
    """A cluster that runs.

    Attributes:
        address: what `ray.init(address=...)` takes.
        pid: the program whose descendants all of Ray's processes are.
        folder: where Ray keeps its sockets and logs.
    """

    address: str
    pid: int
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**RAY_ENVIRONMENT, "RAY_TMPDIR": str(self.folder)}

    def workers(self, running: str = "") -> list[psutil.Process]:
        """The worker processes, or those that run a task whose name begins so.

        Their titles are "ray::" and the task's name, or "ray::IDLE".
        """
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                title = " ".join(process.cmdline()).strip()
                if title.startswith(f"ray::{running}") and title not in AGENTS:
                    found.append(process)
        return found

    def kill_node(self) -> None:
        """SIGKILL all processes of the node that is not the head."""
        family = psutil.Process(self.pid).children(recursive=True)
        raylets = [each for each in family if each.name() == "raylet"]
        (lost,) = [each for each in raylets if "--head" not in each.cmdline()]
        # Workers would otherwise go on with what they are doing.
        for each in (lost, *lost.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.kill()


@contextmanager
def ray_cluster(*, num_nodes: int = 2, num_cpus: int = 1) -> Iterator[RayCluster]:
    """Run a cluster until the block ends; each node has `num_cpus`, as Ray counts them."""
    # Ray reads its environment when it is imported: drivers are programs of their own.
    if find_spec("ray") is None and not os.environ.get("CI"):
        pytest.skip("ray is not installed (group trainers)")
    # Unix sockets lie in it, whose paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    log = folder / "cluster.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster", str(num_nodes), str(num_cpus)],
            cwd=ROOT,
            env={
                **os.environ,
                **RAY_ENVIRONMENT,
                "RAY_TMPDIR": str(folder),
                # What a test's functions are pickled by: their modules.
                "PYTHONPATH": PYTHON_PATH,
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"Ray did not start:\n{log.read_text(errors='replace')[-4000:]}"
        yield RayCluster(json.loads(line)["address"], process.pid, folder)
    finally:
        end_family(process)
        shutil.rmtree(folder, ignore_errors=True)


def end_family(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and all of Ray's processes, and wait until they are gone.

    The program is killed last: as a subreaper it keeps the orphans among its children.
    """
    with suppress(psutil.NoSuchProcess):
        program = psutil.Process(process.pid)
        while True:
            family = [each for each in program.children(recursive=True) if is_alive(each)]
            if not family:
                break
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(family, timeout=0.1)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: not ended, and no zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main(num_nodes: int, num_cpus: int) -> None:
    """Start the nodes, write their address, and wait for the end of standard input."""
    from ray.cluster_utils import Cluster

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Ray interrupts a task by SIGINT, which its workers would inherit as ignored from tests in the
    # background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ray writes to the standard output; the address has it for itself.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = Cluster()
    for number in range(num_nodes):
        cluster.add_node(
            num_cpus=num_cpus,
            object_store_memory=80 << 20,
            node_ip_address="127.0.0.1",
            dashboard_agent_listen_port=0,
            **({} if number else {"include_dashboard": False}),
        )
    cluster.wait_for_nodes(START_S)
    print(json.dumps({"address": cluster.address}), file=answer, flush=True)
    try:
        sys.stdin.buffer.read()
    finally:
        cluster.shutdown()
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
