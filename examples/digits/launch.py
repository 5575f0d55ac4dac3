"""Starts a run under torchrun, watches its ledger, and kills it when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from examples.digits import ledger

__all__ = ["Phase", "RunError", "run"]

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.05
STALL_S = 300.0


@dataclass(frozen=True)
class Phase:
    """One start of the training: on how many ranks, and after which step it is killed."""

    number: int
    world_size: int
    kill_after: int | None


class RunError(Exception):
    """A run ended as it should not have; the message has the end of its output."""


def run(
    directory: Path, phase: Phase, *, num_epochs: int, watch: Callable[[ledger.Account], None]
) -> None:
    """Do one phase: to its end, or until the ledger shows `kill_after` steps and it is killed.

    `watch` is called with what the ledger holds whenever that has grown.
    """
    with _started(directory, phase, num_epochs) as torchrun:
        last, since = (-1, 0), time.monotonic()
        while True:
            ended = torchrun.process.poll() is not None
            account = ledger.read(directory / "ledger")
            step, num_tests = _so_far(account, phase)
            if (step, num_tests) != last:
                last, since = (step, num_tests), time.monotonic()
                watch(account)
            if ended or (phase.kill_after is not None and step >= phase.kill_after):
                break  # leaving the block kills what still runs
            if time.monotonic() - since > STALL_S:
                raise RunError(
                    f"run {phase.number} has been at step {step} for {STALL_S:.0f} s\n"
                    + torchrun.output()
                )
            time.sleep(POLL_S)
    code = torchrun.process.returncode
    if phase.kill_after is not None and code == 0:
        raise RunError(f"run {phase.number} was done before it could be killed")
    if code != (0 if phase.kill_after is None else -signal.SIGKILL):
        raise RunError(f"run {phase.number} ended with exit code {code}\n{torchrun.output()}")


def _so_far(account: ledger.Account, phase: Phase) -> tuple[int, int]:
    """The last step and the number of tests of a run; step -1 before it has begun."""
    for started in account.runs:
        if started.number == phase.number:
            return started.last_step, len(started.accuracy)
    return -1, 0


class _Torchrun:
    """The process and the end of what it and its ranks printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: deque[str] = deque(maxlen=200)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)

    def output(self) -> str:
        return "".join(self._lines)

    def wait(self) -> None:
        """Wait until the pipe has no writer left: then all the ranks are dead as well."""
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def _started(directory: Path, phase: Phase, num_epochs: int) -> Iterator[_Torchrun]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={phase.world_size}"]
    command += ["-m", "examples.digits.train", str(directory)]
    command += [f"--number={phase.number}", f"--epochs={num_epochs}"]
    torchrun = _Torchrun(
        subprocess.Popen(
            command,
            cwd=ROOT,
            # Everything stays on this machine, whatever its name resolves to.
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    )
    try:
        yield torchrun
    finally:
        if torchrun.process.poll() is None:
            _kill(torchrun.process.pid, directory, phase)
        torchrun.wait()


def _kill(pid: int, directory: Path, phase: Phase) -> None:
    """SIGKILL to torchrun first, then to its ranks, each of which leads a group of its own."""
    ranks = [
        rank_pid
        for started in ledger.read(directory / "ledger").runs
        if started.number == phase.number
        for rank_pid in started.pids
    ]
    if len(ranks) < phase.world_size:
        # Not all ranks have said who they are: torchrun knows, and ends them.
        os.kill(pid, signal.SIGTERM)
        return
    os.killpg(pid, signal.SIGKILL)
    for rank_pid in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank_pid, signal.SIGKILL)
