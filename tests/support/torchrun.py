"""Runs a program under torchrun: real ranks, as processes, with an end that is sure to come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
# This tree's packages, also where another tree is installed as editable.
PYTHON_PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


def torchrun(
    program: str | Path,
    *args: str | Path,
    nproc: int,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the file `program` on `nproc` ranks of this machine; see `run_program`."""
    # The host's own name need not resolve.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    env = {"GLOO_SOCKET_IFNAME": "lo", **(env or {})}
    return run_program(
        *launcher,
        f"--nproc-per-node={nproc}",
        program,
        *args,
        timeout=timeout,
        env=env,
        check=check,
    )


def run_program(
    *args: str | Path,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, one OpenMP thread a process, `tests` importable.

    It runs in the folder `cwd`, or in this process's.

    stdout and stderr come back together in `stdout`. After `timeout` seconds the program and
    everything that it started are killed.

    Raises:
        AssertionError: it did not end in time, or (with check) not with 0; holds the output.
    """
    command = [sys.executable, *map(str, args)]
    process = subprocess.Popen(
        command,
        env=environment(env or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_family(process.pid)
        output, _ = process.communicate()
        raise AssertionError(f"no end after {timeout:g} s: {command}\n{output}") from None
    except BaseException:
        kill_family(process.pid)
        process.communicate()
        raise
    if check and process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}: {command}\n{output}")
    return subprocess.CompletedProcess(command, process.returncode, output, "")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and `env`: one OpenMP thread a process, `tests` importable."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHON_PATH, **env}


def kill_family(pid: int) -> None:
    """Kill a process and its descendants; ranks have sessions of their own, no group has them all.

    Parents are stopped first, so that nobody starts anew what was just killed.
    """
    family: list[psutil.Process] = []
    waiting = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    while waiting:
        process = waiting.pop()
        try:
            process.suspend()
            waiting += process.children()
        except psutil.NoSuchProcess:
            continue
        family.append(process)
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
