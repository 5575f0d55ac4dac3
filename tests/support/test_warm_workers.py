"""Workers that are forked from the launcher have what fresh interpreters have."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.base.errors import WorkerError
from tests.support import worker_launcher
from tests.support.warm_workers import LAUNCHER, WorkerLauncher, _limits


def look_around(sample):
    """What a worker sees of itself."""
    return {
        "seen": repr({
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgid(0),
            "cwd": os.getcwd(),
            "word": os.environ.get("WORD"),
            "threads": os.environ["OMP_NUM_THREADS"],
            "stdin": os.readlink("/proc/self/fd/0"),
            "stdout": os.readlink("/proc/self/fd/1"),
            "is_forked": LAUNCHER in Path("/proc/self/cmdline").read_text(),
        })
    }  # fmt: skip


def seen_by_a_worker(**options):
    data = sw.wrap(range(4)).map(look_around)
    with sw.DataLoader(data, 4, num_workers=1, rank=0, world_size=1, **options) as loader:
        [batch] = list(loader)
    [seen] = set(batch["seen"])
    return eval(seen)


@pytest.fixture(params=["forked", "fresh"])
def is_forked(request):
    if request.param == "fresh":
        request.getfixturevalue("fresh_workers")
    return request.param == "forked"


def test_a_worker_is_a_child_in_its_own_group_with_the_callers_folder_and_environment(
    is_forked, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORD", "of today")
    seen = seen_by_a_worker()
    pid = seen.pop("pid")
    assert seen == {
        "parent": os.getpid(),
        "group": pid,
        "cwd": str(tmp_path),
        "word": "of today",
        "threads": "1",
        "stdin": os.devnull,
        "stdout": os.readlink("/proc/self/fd/1"),
        "is_forked": is_forked,
    }
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)  # it was collected


def kill_itself(sample):
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_exit_code_of_a_worker_is_seen(is_forked):
    data = sw.wrap(range(4)).map(kill_itself)
    with (
        sw.DataLoader(data, 4, num_workers=1, rank=0, world_size=1) as loader,
        pytest.raises(WorkerError, match="exit code -9"),
    ):
        list(loader)


@pytest.fixture
def launcher(monkeypatch):
    """One of its own, which has not started its process."""
    made = WorkerLauncher()
    monkeypatch.setattr("shardwise.engine.processes.worker_pool.start_worker", made.start_worker)
    return made


def test_a_child_of_a_fork_starts_its_own_workers(launcher):
    launcher._owner = -1  # as a fork of its process sees it
    assert not seen_by_a_worker()["is_forked"]
    assert launcher.pid is None


def test_where_no_sibling_can_be_forked_workers_are_fresh(launcher, monkeypatch):
    monkeypatch.setattr("tests.support.worker_launcher._NR_CLONE", {})
    assert worker_launcher.fork_sibling() < 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        launcher._control, launcher._process, launcher._limits = ours, "started", _limits()
        theirs.send(b"0")  # its reply
        assert not seen_by_a_worker()["is_forked"]
