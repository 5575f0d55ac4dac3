"""Starts a worker process: a fresh interpreter with the trainer's module path."""

from __future__ import annotations

import os
import subprocess
import sys

# Inside a worker its own threads are the parallelism: libraries get one thread each.
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "OPENCV_FOR_THREADS_NUM",
), "1")  # fmt: skip

_WORKER = "shardwise.engine.processes.worker"


def start_worker(job: int, *, sock: int, status: int, number: int) -> subprocess.Popen[bytes]:
    """Start a worker that inherits the files of its job and status, and its socket."""
    inherited = (sock, job, status)
    # The trainer's modules and no others: what lies in the working directory is no module of a
    # program that was started from elsewhere.
    start = f"import sys; sys.path[:] = {sys.path!r}; from {_WORKER} import main; main()"
    return subprocess.Popen(  # noqa: S603 - this interpreter, this package
        [sys.executable, "-P", "-c", start, _WORKER, *map(str, (*inherited, number))],
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=_inherited_or_null(1),
        stderr=_inherited_or_null(2),
        env={**os.environ, **_ONE_THREAD},
        # Ctrl-C in a terminal reaches the trainer alone.
        process_group=0,
    )


def _inherited_or_null(descriptor: int) -> int | None:
    """What a worker gets as stdout or stderr: the trainer's (None), or /dev/null if it is closed.

    Another file may have taken the number since; it would not be inherited.
    """
    try:
        return None if os.get_inheritable(descriptor) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL
