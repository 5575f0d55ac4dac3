"""Starts workers as forks of one process that has imported what they import; see `worker_launcher`.

A fresh interpreter takes 0.3 s of CPU time for its imports, 0.5 s where it imports a test's module.
For claims about what workers do. Claims about how they start are tested with `fresh_workers`.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from shardwise.engine.processes import start_worker as module
from tests.support.torchrun import PYTHON_PATH, ROOT

LAUNCHER = "tests.support.worker_launcher"
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)


class WorkerLauncher:
    """Starts the process that workers are forked from, with the first of them."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start_worker(
        self, job: int, *, sock: int, status: int, number: int
    ) -> subprocess.Popen[bytes]:
        """Do what `start_worker` does."""
        is_ours = os.getpid() == self._owner
        if is_ours:
            with self._lock:
                if self._process is None:
                    self._start()
        if not is_ours or self._limits != _limits():
            # Of a fork, or with other limits than the launcher's.
            return module.start_worker(job, sock=sock, status=status, number=number)
        with self._lock:
            call = {
                "environment": {**os.environ, **module._ONE_THREAD},
                "path": sys.path,
                "cwd": str(Path.cwd()),
                "cpus": list(os.sched_getaffinity(0)),
                "number": number,
            }
            with ExitStack() as stack:
                nothing = stack.enter_context(open(os.devnull, "r+b")).fileno()
                standard = [nothing if module._inherited_or_null(each) else each for each in (1, 2)]
                descriptors = [sock, job, status, nothing, *standard]
                socket.send_fds(self._control, [json.dumps(call).encode()], descriptors)
            reply = self._control.recv(32)
        assert reply, "the launcher ended"
        pid = int(reply)
        if pid == 0:
            return module.start_worker(job, sock=sock, status=status, number=number)
        os.setpgid(pid, pid)
        return _popen(pid)

    def end(self) -> None:
        """End the process, where there is one. It ends with this process, too: with its socket."""
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", LAUNCHER, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **module._ONE_THREAD, "PYTHONPATH": PYTHON_PATH},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Not in a session of its own: groups of workers must be in this one.
                process_group=0,
            )
        self._limits = _limits()


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(each) for each in _LIMITS]


def _popen(pid: int) -> subprocess.Popen[bytes]:
    """A child that was started elsewhere, as `Popen` has it."""
    process: subprocess.Popen[bytes] = subprocess.Popen.__new__(subprocess.Popen)
    process.__dict__.update(
        args=[LAUNCHER], pid=pid, returncode=None, stdin=None, stdout=None, stderr=None,
        _child_created=True, _waitpid_lock=threading.Lock(), _sigint_wait_secs=0.25,
    )  # fmt: skip
    return process
