"""Scratch directories: held while they are in use, and gone at the latest with the next one."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shardwise.building.shard import scratch_directory
from tests.support.server_process import end_with_parent

_HOLD = """
import sys
from shardwise.building.shard import scratch_directory
with scratch_directory() as directory:
    (directory / "0.parquet").write_bytes(b"x")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_leaves_is_removed_and_what_is_in_use_is_not(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
    )
    assert process.stdout is not None
    held = Path(process.stdout.readline().strip())
    assert held.parent == folder
    with scratch_directory() as own:
        assert {held, own} == set(folder.iterdir())
    process.kill()
    process.communicate()
    assert list(folder.iterdir()) == [held]
    with scratch_directory() as own:
        assert list(folder.iterdir()) == [own]
    assert not list(folder.iterdir())


def test_without_locks_there_is_a_directory_and_none_is_swept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    with scratch_directory() as one, scratch_directory() as two:
        assert {one, two} == set(folder.iterdir())
    assert not list(folder.iterdir())


def test_links_and_other_names_stay(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "shardwise-build-link").symlink_to(folder / "data")
    (folder / "shardwise-build-file").touch()
    with scratch_directory():
        pass
    assert len(list(folder.iterdir())) == 3


def test_many_threads_have_one_each() -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(30):
                with scratch_directory() as directory:
                    assert not list(directory.iterdir())
                    (directory / "x").write_text(str(number))
                    assert (directory / "x").read_text() == str(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
