"""Whole programs: they end when a sample never comes, and need no room in /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise import TarWriter

PROGRAMS = Path(__file__).parent / "programs"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_program_ends_though_a_thread_is_stuck_for_ever():
    done = run(sys.executable, str(PROGRAMS / "stuck.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "40 StallError\n", "")


def test_a_program_that_ends_in_the_middle_of_a_pass_prints_nothing(tmp_path):
    with TarWriter(tmp_path / "0.tar") as writer:
        for number in range(9):
            writer.write({"__key__": str(number), "cls": number})
    done = run(sys.executable, str(PROGRAMS / "left_early.py"), str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_workers_give_objects_of_the_programs_own_classes():
    done = run(sys.executable, str(PROGRAMS / "own_classes.py"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    # The same in a second pass: what a worker sent for the first one does not end it earlier.
    assert [line[0] for line in lines] == ["0", "0", "1", "1"]
    assert all("holds an object of 'Inner': define that at the top" in line for line in lines[:2])
    assert all("must consist of what pickles" in line for line in lines[2:])


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ("size=64m", "numpy"),
        pytest.param("size=64m", "torch", marks=pytest.mark.long),
        pytest.param("size=64m,ro", "numpy", marks=pytest.mark.long),
    ],
)
def test_large_batches_of_processes_need_no_room_in_dev_shm(options, output):
    own = ["unshare", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    if os.geteuid() != 0 or run(*own, mount).returncode != 0:
        pytest.skip("needs the right to mount a /dev/shm of its own")
    program = f'{mount} && exec "$0" "$1" {output}'
    done = run(*own, program, sys.executable, str(PROGRAMS / "small_shm.py"))
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
