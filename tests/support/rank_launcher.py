"""Imports modules once, forks the ranks of one run after another, and runs a program in each.

torchrun starts each rank as a new interpreter: 2 s of CPU time for torch and 6 s for Lightning or
transformers, in each rank, and 2 s for torchrun itself. Here the ranks share one import.

Argument: JSON of `preload`, the modules to import where they are installed, `folder`, for outputs
and exit codes, and `runs`; a run has `args`, as they follow "python", and `nproc`: null for one
process that is no rank. The ranks of a run have torchrun's environment; the launcher has their
store.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

from torch.distributed import TCPStore

import shardwise.sources.tar.source
import shardwise.torch  # noqa: F401

# torchrun waits as long between SIGTERM and SIGKILL.
TERM_S = 30.0


def main(preload: list[str], folder: str, runs: list[dict]) -> None:
    """Run each; in a rank, return when its program has ended, so that it ends as any program."""
    for name in preload:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    if threads := other_threads():
        raise RuntimeError(f"{preload} started threads, so that no fork is safe: {threads}")
    codes = []
    for number, run in enumerate(runs):
        output = Path(folder, f"{number}.out")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            pids = {}
            for rank in range(run["nproc"] or 1):
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    write_to(output)
                    if run["nproc"] is not None:
                        os.environ.update(environment(rank, run["nproc"], port))
                    run_program(run["args"])
                    return
                pids[pid] = rank
            # Its thread must not be there before the forks; ranks wait in the listener's queue.
            store = TCPStore(
                "127.0.0.1", port, is_master=True, wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        codes.append(wait(pids))
        del store
        # The store's thread may end a little later than the store.
        while other_threads():
            time.sleep(0.001)
    Path(folder, "codes.json").write_text(json.dumps(codes))


def other_threads() -> list[str]:
    """Threads whose locks a fork may leave locked; jemalloc, of pyarrow, takes care of its."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # it ended meanwhile
            continue
        if int(task.name) != os.getpid() and name != "jemalloc_bg_thd":
            names.append(name)
    return names


def write_to(output: Path) -> None:
    """All ranks of a run append to one file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun --standalone says to a rank."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), world_size)
    elastic = {
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": f"launcher-{os.getppid()}-{port}",
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    others = {"GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in (ranks | sizes | elastic | others).items()}


def run_program(args: list[str]) -> None:
    """Run a file, or a module after "-m", as this process's main module."""
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[0] = str(Path(args[0]).parent)
        runpy.run_path(args[0], run_name="__main__")


def wait(pids: dict[int, int]) -> int:
    """The exit code of the first rank that failed, which ends the others; else 0."""
    code, deadline = 0, None
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG if deadline else 0)
        if pid == 0:
            if time.monotonic() > deadline:
                for left in pids:
                    os.kill(left, signal.SIGKILL)
            time.sleep(0.005)
            continue
        del pids[pid]
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            deadline = time.monotonic() + TERM_S
            for left in pids:
                os.kill(left, signal.SIGTERM)
    return code


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
