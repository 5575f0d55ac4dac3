"""Metrics of real ranks, one of which is killed, and of the smaller world that follows."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.commands import document, run
from tests.support.metrics import lines_of
from tests.support.waiting import wait_for

PROGRAM = """
import sys
import shardwise as sw
from shardwise.extensions.monitor import metrics_file

metrics_file.INTERVAL_S = 0.02
directory, rank, world_size, gate = sys.argv[1], *map(int, sys.argv[2:])
data = sw.wrap(range(1200))
with sw.DataLoader(data, 4, rank=rank, world_size=world_size, output="numpy", num_workers=0,
                   metrics=directory) as loader:
    for step, _ in enumerate(loader, 1):
        if step == gate:
            sys.stdin.read()
"""


def start(program: Path, directory: Path, rank: int, world_size: int, gate: int):
    arguments = [directory, rank, world_size, gate]
    return subprocess.Popen(
        [sys.executable, program, *map(str, arguments)], stdin=subprocess.PIPE, text=True
    )


def test_a_killed_rank_is_seen_with_all_that_it_did_until_then(tmp_path: Path) -> None:
    program, directory = tmp_path / "program.py", tmp_path / "metrics"
    program.write_text(PROGRAM)
    ranks = [start(program, directory, rank, 3, 20) for rank in range(3)]

    def last_counts() -> dict[int, int]:
        ends = [lines[-1] for lines in lines_of(directory)] if directory.exists() else []
        return {line["rank"]: line["totals"]["batches"] for line in ends}

    wait_for(lambda: last_counts() == {0: 20, 1: 20, 2: 20})
    ranks[1].send_signal(signal.SIGKILL)
    for process in ranks:
        process.communicate(timeout=60)
    assert [process.returncode for process in ranks] == [0, -signal.SIGKILL, 0]

    wait_for(lambda: "silent" in document("watch", directory)["ranks"][1]["mark"])
    found = document("watch", directory)
    assert [each["progress"] for each in found["ranks"]] == [1.0, 240 / 1200, 1.0]
    assert last_counts() == {0: 100, 1: 20, 2: 100}
    assert found["notes"] == []

    smaller = [start(program, directory, rank, 2, 0) for rank in range(2)]
    for process in smaller:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = document("watch", directory)
    assert found["world_size"] == 2
    assert [each["progress"] for each in found["ranks"]] == [1.0, 1.0]
    page = tmp_path / "run.html"
    run("report", directory, "-o", page)
    assert "rank 1" in page.read_text()
