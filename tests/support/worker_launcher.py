"""Imports what workers import once, and forks a worker for each message of its socket.

A message is the JSON of one worker: `environment`, `path`, `cwd` and `number`; with it come its
socket, job and status, and its stdin, stdout and stderr. The reply is the worker's pid,
or 0 where the system can't fork a sibling.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys

import numpy as np
import psutil  # noqa: F401 - modules of tests import it, which workers import
import pytest  # noqa: F401 - the same

from shardwise.engine.processes.worker import main
from tests.support.threads import other_threads

_CLONE_PARENT = 0x8000
_NR_CLONE = {"x86_64": 56, "aarch64": 220}
# It keeps the GIL, in the child, too.
_LIBC = ctypes.PyDLL(None)


def serve(control: socket.socket) -> None:
    """Fork a worker for each message, until the socket ends; in the worker, run it."""
    if threads := other_threads():
        raise RuntimeError(f"imports started threads, so that no fork is safe: {threads}")
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 6)
        if not message:
            return
        pid = fork_sibling()
        if pid == 0:
            control.send(str(os.getpid()).encode())
            control.close()
            become(descriptors, **json.loads(message))
            main()
        if pid < 0:
            control.send(b"0")
        for descriptor in descriptors:
            os.close(descriptor)


def fork_sibling() -> int:
    """Fork as `os.fork` does, but as a child of this process's parent, who waits for it.

    The result is negative where that fails.
    """
    if (call := _NR_CLONE.get(os.uname().machine)) is None:
        return -1
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _LIBC.syscall(call, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def become(
    descriptors: list[int],
    *,
    environment: dict[str, str],
    path: list[str],
    cwd: str,
    cpus: list[int],
    number: int,
) -> None:
    """Take over what `start_worker` gives to a fresh interpreter."""
    inherited, standard = descriptors[:3], descriptors[3:]
    for target, descriptor in enumerate(standard):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cpus)
    os.chdir(cwd)
    sys.path[:] = path
    sys.argv = [sys.argv[0], *map(str, (*inherited, number))]
    np.random.seed()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
