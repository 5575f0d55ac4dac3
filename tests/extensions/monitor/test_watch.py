"""`shardwise watch`: the table of all ranks, the straggler, and what is odd about the lines."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios

import pytest

from tests.support.commands import document, run, spawn
from tests.support.metrics import write_rank

WAITS = {0: 0.05, 1: 0.02, 2: 0.6, 3: 0.04}


@pytest.fixture
def directory(tmp_path):
    for rank, wait in WAITS.items():
        write_rank(tmp_path / "m", rank, [0.9] * 10 + [wait] * 6)
    return tmp_path / "m"


def test_ranks_are_shown_by_their_last_minute_and_the_straggler_is_marked(directory):
    found = document("watch", directory)
    assert (found["world_size"], found["straggler"], found["notes"]) == (4, 2, [])
    assert [each["rank"] for each in found["ranks"]] == [0, 1, 2, 3]
    assert [each["wait"] for each in found["ranks"]] == pytest.approx([*WAITS.values()])
    assert found["ranks"][0]["rate"] == pytest.approx(64.0)
    assert [each["wait_ms"]["p99"] for each in found["ranks"]] == [100.0] * 4
    table = run("watch", directory).stdout.splitlines()
    assert " ".join(table[0].split()) == ("rank epoch done rate waits p99 ms bound by egress cache")
    assert " ".join(table[3].split()) == "2 0 16% 64 60% 100.0 read - - straggler"


@pytest.mark.parametrize(
    ("waits", "straggler"),
    [([0.9, 0.85, 0.9, 0.8], None), ([0.01, 0.0, 0.05, 0.0], None), ([0.3, 0.1, 0.1, 0.1], 0)],
)
def test_a_straggler_waits_long_and_longer_than_others(tmp_path, waits, straggler):
    for rank, wait in enumerate(waits):
        write_rank(tmp_path, rank, [wait] * 3)
    assert document("watch", tmp_path)["straggler"] == straggler


def test_a_wait_that_has_not_ended_counts(tmp_path):
    for rank in range(4):
        write_rank(tmp_path, rank, [0.0] * 3)
    stuck = write_rank(tmp_path, 1, [0.0] * 3)
    text = stuck.read_text().splitlines()
    text[-1] = text[-1].replace('"waiting_s": 0.0', '"waiting_s": 9.0')
    stuck.write_text("\n".join(text) + "\n")
    assert document("watch", tmp_path)["straggler"] == 1


def test_ranks_without_lines_silent_ones_and_damage_are_said(directory):
    (path,) = directory.glob("*-00003.jsonl")
    path.unlink()
    write_rank(directory, 0, [0.1] * 3, time=1.0e9)
    path = write_rank(directory, 1, [0.1] * 3)
    path.write_text(path.read_text() + "{}\n[1, 2\n" + '{"version": 1, "cut off')
    found = document("watch", directory)
    assert "silent" in found["ranks"][0]["mark"]
    assert len(found["ranks"]) == 3
    assert found["notes"][0] == "1 of 4 ranks wrote no line here"
    assert len(found["notes"]) == 3
    assert all("a line of metrics-" in note for note in found["notes"][1:])


def test_lines_of_an_earlier_larger_world_are_left_out(directory):
    write_rank(directory, 0, [0.1] * 3, world_size=1)
    assert [each["rank"] for each in document("watch", directory)["ranks"]] == [0]


@pytest.mark.parametrize("value", ["x", float("nan"), {}, None])
@pytest.mark.parametrize("name", ["time", "rank", "totals", "waiting_s", "progress"])
def test_damaged_values_are_notes(tmp_path, name, value):
    write_rank(tmp_path, 0, [0.5] * 3, **{name: value})
    found = document("watch", tmp_path)
    assert found["ranks"] == []
    assert len(found["notes"]) == 4


def test_text_of_a_line_can_not_steer_the_terminal(tmp_path):
    write_rank(tmp_path, 0, [0.5] * 3, bound_by="\x1b[2Jread")
    assert "\x1b" not in run("watch", tmp_path).stdout


def test_a_directory_without_lines_names_the_argument(tmp_path):
    assert "metrics=DIR" in run("watch", tmp_path, exit_code=1).stderr
    assert "metrics=DIR" in run("watch", tmp_path / "none", exit_code=1).stderr


def test_a_terminal_shows_a_live_table_until_ctrl_c(directory):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = spawn("watch", directory, stdout=end, stderr=end)
    os.close(end)
    shown = b""
    while b"straggler" not in shown:
        shown += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    # On Linux, the end of the other side is an error.
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass
    assert process.wait(60) == 0
    os.close(terminal)
