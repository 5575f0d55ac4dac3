"""Runs programs on several real ranks whose imports are paid once; see `rank_launcher`.

For claims about ranks. Claims about torchrun itself are tested with `torchrun`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.torchrun import run_program

__all__ = ["Run", "run_ranks", "run_several"]

LAUNCHER = Path(__file__).parent / "rank_launcher.py"


@dataclass(frozen=True)
class Run:
    """A program with its arguments on `nproc` ranks; None is one process that is no rank."""

    args: Sequence[str | Path]
    nproc: int | None
    check: bool = True


def run_ranks(
    program: str | Path,
    *args: str | Path,
    nproc: int,
    preload: Sequence[str] = (),
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program on `nproc` ranks of this machine, as `torchrun` does; see `run_several`."""
    run = Run((program, *args), nproc, check)
    [done] = run_several(run, preload=preload, timeout=timeout, env=env)
    return done


def run_several(
    *runs: Run,
    preload: Sequence[str] = (),
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Run programs one after the other, forked from one process that has imported `preload`.

    A rank that fails ends the others of its run, and later runs begin nevertheless.

    Raises:
        AssertionError: the runs did not end in `timeout` seconds together, or one with `check` did
            not end with 0; holds the output.
    """
    with tempfile.TemporaryDirectory(prefix="ranks") as folder:
        todo = {
            "preload": list(preload),
            "folder": folder,
            "runs": [{"args": [str(arg) for arg in run.args], "nproc": run.nproc} for run in runs],
        }
        outputs = [Path(folder, f"{number}.out") for number in range(len(runs))]
        env = {"GLOO_SOCKET_IFNAME": "lo", **(env or {})}
        try:
            run_program(LAUNCHER, json.dumps(todo), timeout=timeout, env=env)
        except AssertionError as error:
            texts = [path.read_text() for path in outputs if path.exists()]
            raise AssertionError("\n".join([str(error), *texts])) from None
        codes = json.loads(Path(folder, "codes.json").read_text())
        done = [
            subprocess.CompletedProcess(list(run.args), code, path.read_text(), "")
            for run, code, path in zip(runs, codes, outputs, strict=True)
        ]
    for run, each in zip(runs, done, strict=True):
        if run.check and each.returncode:
            raise AssertionError(f"exit code {each.returncode}: {run}\n{each.stdout}")
    return done
