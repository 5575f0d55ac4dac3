"""Runs programs on several real ranks whose imports are paid once a session; see `rank_launcher`.

For claims about ranks. Claims about torchrun itself are tested with `torchrun`.
"""

from __future__ import annotations

import functools
import json
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.torchrun import environment, kill_family

LAUNCHER = Path(__file__).parent / "rank_launcher.py"


@dataclass(frozen=True)
class Run:
    """A program with its arguments on `nproc` ranks; None is one process that is no rank.

    `env` has more variables for it than those of the call.
    """

    args: Sequence[str | Path]
    nproc: int | None
    check: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


def run_ranks(
    program: str | Path,
    *args: str | Path,
    nproc: int,
    preload: Sequence[str] = (),
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program on `nproc` ranks of this machine, as `torchrun` does; see `run_several`."""
    run = Run((program, *args), nproc, check)
    [done] = run_several(run, preload=preload, timeout=timeout, env=env, folder=folder)
    return done


def run_several(
    *runs: Run,
    preload: Sequence[str] = (),
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Run programs one after the other, forked from one process that has imported `preload`.

    A rank that fails ends the others of its run, and later runs begin nevertheless. In `folder`
    the output of the first run grows as "0.out", of the second as "1.out".

    Raises:
        AssertionError: the runs did not end in `timeout` seconds together, or one with `check` did
            not end with 0; holds the output.
    """
    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ranks")))
        call = {
            "environment": environment({"GLOO_SOCKET_IFNAME": "lo", **(env or {})}),
            "cwd": str(Path.cwd()),
            "output": str(folder / "launcher.out"),
            "preloaded": list(preload),
            "timeout": timeout,
            "folder": str(folder),
            "runs": [
                {"args": [str(arg) for arg in run.args], "nproc": run.nproc, "env": dict(run.env)}
                for run in runs
            ],
        }
        try:
            _call_launcher(call, timeout)
        except AssertionError as error:
            texts = [path.read_text() for path in sorted(folder.glob("*.out"))]
            raise AssertionError("\n".join([str(error), *texts])) from None
        codes = json.loads((folder / "codes.json").read_text())
        done = [
            subprocess.CompletedProcess(
                list(run.args), code, (folder / f"{number}.out").read_text(), ""
            )
            for number, (run, code) in enumerate(zip(runs, codes, strict=True))
        ]
    for run, each in zip(runs, done, strict=True):
        if run.check and each.returncode:
            raise AssertionError(f"exit code {each.returncode}: {run}\n{each.stdout}")
    return done


def run_forked(
    folder: Path,
    code: str,
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> str:
    """Run code, written to `folder`, as the program of a process whose imports are paid.

    What it printed on stdout and stderr comes back.
    """
    program = folder / "program.py"
    program.write_text(code)
    [done] = run_several(Run((program, *args), None, check), env=env)
    return done.stdout


@functools.cache
def _launcher() -> subprocess.Popen[bytes]:
    """The one of this process: it imports torch before it reads its first call."""
    return subprocess.Popen(
        [sys.executable, str(LAUNCHER)],
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def end_launcher() -> None:
    """End the launcher, where there is one, and wait for that."""
    if _launcher.cache_info().currsize:
        launcher = _launcher()
        _launcher.cache_clear()
        # It ends where its stdin does, unless a call is under way.
        launcher.communicate(timeout=60)


def _call_launcher(call: Mapping[str, Any], timeout: float) -> None:
    """Have a call done; a launcher that fails is replaced before the next one."""
    launcher = _launcher()
    try:
        launcher.stdin.write(f"{json.dumps(call)}\n".encode())
        with selectors.DefaultSelector() as selector:
            selector.register(launcher.stdout, selectors.EVENT_READ)
            assert selector.select(timeout), f"no end after {timeout:g} s"
        code = launcher.stdout.readline()
        assert code, "the launcher ended"
    except BaseException:
        _launcher.cache_clear()
        kill_family(launcher.pid)
        launcher.communicate()
        raise
    # Not the environment: it may have secrets.
    told = [call["preloaded"], *(run["args"] for run in call["runs"])]
    assert int(code) == 0, f"exit code {int(code)}: {told}"
