"""Imports torch once, and runs programs in forks as long as its stdin is open.

torchrun starts each rank as a new interpreter: 2 s of CPU time for torch, 2 s for what DDP imports
in its first step, 6 s for Lightning or transformers, in each rank, and 2 s for torchrun itself.
Here all ranks of a test session share the import of torch and of DDP, and those of one call of
`run_several` what that call preloads.

A line of stdin is the JSON of one call: `environment` and `cwd`, of the process that is forked for
it; `output`, the file for what it prints; and the arguments of `main`. The reply is a line with the
exit code of that process.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed import TCPStore

import shardwise.sources.tar.source
import shardwise.torch  # noqa: F401
from tests.support.threads import other_threads

# What torch imports in the first step of its DDP.
DDP = ("torch._dynamo", "torch.distributed.tensor")
# torchrun waits as long between SIGTERM and SIGKILL.
TERM_S = 30.0


def serve() -> None:
    """Fork a process for each line of stdin; it and its ranks end when their programs have."""
    preload(DDP)
    for line in sys.stdin:
        call = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(call.pop("environment"), call.pop("cwd"), Path(call.pop("output")))
            main(**call)
            end()
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(environment: dict[str, str], cwd: str, output: Path) -> None:
    """Take the caller's environment and folder; stdin is empty."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    write_to(output)


def main(preloaded: list[str], folder: str, runs: list[dict], timeout: float) -> None:
    """Run each and exit; in a rank, return when its program has ended.

    Args:
        preloaded: the modules to import first, where they are installed.
        folder: for the outputs, "0.out" and so on, and "codes.json" with the exit codes.
        runs: dicts of `args`, as they follow "python"; `nproc`, None for one process that is no
            rank; and `env`, more variables. Ranks have torchrun's environment and a store.
        timeout: seconds after which the caller gives up.
    """
    preload(preloaded)
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
                    os.environ.update(run["env"])
                    # What hangs says where: its output is in the error.
                    faulthandler.dump_traceback_later(0.9 * timeout)
                    keep_process_groups()
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
    # No program ran here, and an interpreter with torch takes 1 s of CPU time to end in order.
    os._exit(0)


def preload(names: Sequence[str]) -> None:
    """Import modules, where they are installed; none may start a thread."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    if threads := other_threads():
        raise RuntimeError(f"{names} started threads, so that no fork is safe: {threads}")
    # Else each fork's collections copy the pages of these modules: 0.8 s of CPU time at its end.
    gc.collect()
    gc.freeze()


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


def keep_process_groups() -> None:
    """Let a process group that is destroyed live as long as its process.

    If a model in torch's DDP is the last that holds it, torch waits for the group's threads with
    the GIL, for which they may wait: 7 of 40 runs hung so on a busy machine.
    """
    destroy, kept = torch.distributed.destroy_process_group, []

    def destroy_and_keep(group: Any = None) -> None:
        kept.append(group or torch.distributed.group.WORLD)
        destroy(group)

    torch.distributed.destroy_process_group = destroy_and_keep


def run_program(args: list[str]) -> None:
    """Run a file, or a module after "-m", as this process's main module."""
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[0] = str(Path(args[0]).parent)
        runpy.run_path(args[0], run_name="__main__")


def end() -> NoReturn:
    """End as a program does, without clearing torch's modules: 0.4 s of CPU time in each fork."""
    gc.collect()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


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
    serve()
