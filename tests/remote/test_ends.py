"""Programs that read remote data end as all programs do: at once, in silence, with their code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.remote_shards import put_indexed_shards
from tests.support.torchrun import PYTHON_PATH

PROGRAM = Path(__file__).parent / "programs" / "reads_and_ends.py"
RAISED = "Traceback (most recent call last):"


@pytest.fixture(scope="module")
def urls(s3):
    # Long enough for requests whose replies are still coming at the end.
    return put_indexed_shards(s3, "ends", [40, 40], num_bytes=1_000_000)


# Several at once: what goes wrong at an end is a race.
@pytest.mark.parametrize(
    ("way", "times"),
    [
        ("plain", 1), ("exit", 1), ("raise", 1), ("ahead", 1), ("threads", 1), ("processes", 1),
        *(
            pytest.param(way, times, marks=pytest.mark.long)
            for way, times in {
                "plain": 10, "exit": 4, "raise": 4, "ahead": 6, "thread": 4, "threads": 4,
                "spawned": 1, "torch": 1,
            }.items()
        ),
    ],
)  # fmt: skip
def test_a_program_ends_at_once_and_in_silence(s3, urls, way, times, tmp_path):
    env = {
        **os.environ,
        **s3.environment,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": PYTHON_PATH,
    }
    programs = [
        subprocess.Popen(
            [sys.executable, PROGRAM, way, *urls],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=env,
        )
        for _ in range(times)
    ]  # fmt: skip
    try:
        for program in programs:
            said = program.communicate(timeout=180)[0]
            assert program.returncode == {"exit": 7, "raise": 1}.get(way, 0), said
            if way == "raise":
                assert said.startswith(RAISED), said
                assert said.endswith("RuntimeError: the end\n"), said
                assert said.count("\n") == 4, said
            else:
                assert not said
    finally:
        for program in programs:
            program.kill()
            program.wait()
            program.stdout.close()
