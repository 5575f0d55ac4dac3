"""`shardwise certify` of directories with missing, doubled, foreign and damaged lines."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shardwise.extensions.certify.coverage_files import read_coverage
from shardwise.extensions.certify.epoch_verdict import verdict_of
from shardwise.extensions.certify.lineage import lineage_of
from shardwise.extensions.certify.runs import read_runs
from shardwise.plan import FullSampler, WindowSampler
from tests.support.commands import document, run
from tests.support.coverage import Data, Ranks

SIZES = [40, 0, 61, 30, 70]
NUM = sum(SIZES)
DATA = Data(NUM)
WINDOW = WindowSampler(SIZES, window=5, lanes=7, seed=3)
FULL = FullSampler(NUM, seed=1)


def written(directory: Path) -> list[Path]:
    """Two runs of two ranks: an epoch with a resume in its middle, and the next one."""
    Ranks(directory, DATA, FULL, world_size=2, shared="one").epoch(num_steps=8)
    again = Ranks(directory, DATA, FULL, world_size=2, shared="two")
    again.epoch(0, 8 * 6, every=5)
    again.epoch(1, every=10)
    assert document("certify", directory)["ok"]
    return sorted(directory.glob("*.jsonl"))


def test_a_missing_line_is_named_by_run_rank_and_positions(tmp_path: Path) -> None:
    path = written(tmp_path)[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:1], *lines[2:]]))
    output = run("certify", tmp_path, exit_code=1).stdout
    text = "run one, rank 0 of 2 has no line that ends at 48, and lines up to position 12"
    assert text in output
    assert "epoch 0: NOT every one" in output
    assert f"epoch 1: every one of {NUM} samples" in output


def test_any_missing_line_is_found(tmp_path: Path) -> None:
    for path in written(tmp_path):
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        for number in range(len(lines)):
            path.write_text("".join(lines[:number] + lines[number + 1 :]))
            run("certify", tmp_path, exit_code=1)
        path.write_text(text)


def test_any_doubled_line_is_found(tmp_path: Path) -> None:
    for path in written(tmp_path):
        text = path.read_text()
        for line in text.splitlines(keepends=True):
            path.write_text(text + line)
            output = run("certify", tmp_path, exit_code=1).stdout
            assert "covers already" in output
        path.write_text(text)
        # A file that was copied beside itself.
        copy = tmp_path / "zz.jsonl"
        copy.write_text(text)
        output = run("certify", tmp_path, exit_code=1).stdout
        assert f"zz.jsonl is a copy of {path.name}" in output
        assert "undone" not in output
        copy.unlink()


def test_a_missing_file_is_a_rank_without_a_line(tmp_path: Path) -> None:
    written(tmp_path)[3].unlink()
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "run two, rank 1 of 2 has no line at all" in output


def test_a_line_of_another_rank_in_its_place_is_found(tmp_path: Path) -> None:
    paths = written(tmp_path)
    paths[3].write_text(paths[2].read_text().replace('"rank": 0', '"rank": 1'))
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "do not add up to the epoch" in output


def test_a_line_of_other_data_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)[0]
    line = path.read_text().splitlines()[1].replace("0123456789abcdef", "f" * 16)
    path.write_text(path.read_text() + line + "\n")
    output = run("certify", tmp_path, exit_code=1).stdout
    assert f"line 5 of {path.name} is of other data or another order than the first" in output


def test_two_trainings_in_one_directory_have_a_table_each(tmp_path: Path) -> None:
    Ranks(tmp_path, DATA, WINDOW, world_size=2).epoch()
    Ranks(tmp_path, DATA, FullSampler(NUM, seed=9), world_size=3).epoch()
    output = run("certify", tmp_path).stdout
    assert output.count(f"epoch 0: every one of {NUM} samples exactly once") == 2
    assert "order window, seed 3" in output
    assert "order full, seed 9" in output


def test_a_last_line_without_its_end_counts_for_nothing(tmp_path: Path) -> None:
    Ranks(tmp_path, DATA, FULL).epoch(num_steps=4, every=1)
    [path] = tmp_path.glob("*.jsonl")
    text = path.read_text()
    length = len(text.splitlines()[-1])
    for cut in (*range(0, length, 5), length):
        path.write_text(text[: -1 - cut])
        found = document("certify", tmp_path)
        assert found["ok"]
        [epoch] = found["orders"][0]["epochs"]
        assert epoch["reached"] == 9
        assert "up to position 9 of 201 so far" in epoch["verdict"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no line of coverage"),
        ('{"version": 2}', "version is 2"),
        ('{"version": 1}', "has no 'run'"),
        ("[" * 5000, "not JSON"),
        ("\udcff", "utf-8"),
    ],
)
def test_a_line_that_is_none_is_named_with_its_place(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path)[0]
    with path.open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    output = run("certify", tmp_path, exit_code=1).stdout
    assert f"line 5 of {path.name} can't be used" in output
    assert why in output


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": 2},
        {"rank": True},
        {"world_size": 10**12},
        {"world_size": 0},
        {"first": 500, "last": 400},
        {"last": 10**9},
        {"handed_out": [1]},
        {"handed_out": [1, "a"]},
        {"planned": None},
        {"order": "full"},
        {"run": 3},
        {"began": "now"},
        {"began": math.nan},
        {"batch_size": 0},
    ],
)
def test_a_line_with_a_damaged_value_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(tmp_path)[0]
    lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | change)
    path.write_text("\n".join(lines) + "\n")
    output = run("certify", tmp_path, exit_code=1).stdout
    assert f"line 1 of {path.name} can't be used" in output


@pytest.mark.parametrize("of_whole_files", [False, True])
def test_a_thousand_faults_are_listed_and_more_are_said(
    tmp_path: Path, of_whole_files: bool
) -> None:
    path = written(tmp_path)[0]
    for number in range(1500 if of_whole_files else 1):
        other = tmp_path / f"odd{number}.jsonl" if of_whole_files else path
        with other.open("a") as file:
            file.write(f"{number}\n" if of_whole_files else "{\n" * 1500)
    faults = document("certify", tmp_path, exit_code=1)["faults"]
    assert len(faults) == 1001
    assert faults[-1] == "there are more faults, which are not listed"


def test_a_directory_without_lines_says_what_writes_them(tmp_path: Path) -> None:
    assert "coverage=DIR" in run("certify", tmp_path, exit_code=1).stderr
    (tmp_path / "a-00000.jsonl").touch()
    assert "without a whole line" in run("certify", tmp_path, exit_code=1).stdout


def test_a_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in run("certify", tmp_path / "gone", exit_code=1).stderr
    (tmp_path / "file").touch()
    assert "Not a directory" in run("certify", tmp_path / "file", exit_code=1).stderr


def test_coverage_that_begins_in_mid_epoch_proves_nothing_of_what_was_before(
    tmp_path: Path,
) -> None:
    Ranks(tmp_path, DATA, FULL, world_size=2).epoch(2, 60)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "positions 0 to 60: no line says who read them" in output


def test_an_epoch_that_was_left_in_its_middle_is_a_fault(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, DATA, FULL, world_size=2, shared="one")
    ranks.epoch(num_steps=1)
    ranks.epoch(1)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert f"left at position 6 of {NUM}, and the training went on with epoch 1" in output


def test_ranks_that_never_wrote_at_a_checkpoint_are_told_to(tmp_path: Path) -> None:
    first = Ranks(tmp_path, DATA, FULL, world_size=3, shared="one")
    passes = first.begin()
    for _ in range(4):
        first.step(passes)
    first.note(passes, [0])
    Ranks(tmp_path, DATA, FULL, world_size=2, shared="two").epoch(0, 36)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "run one, rank 1 of 3 has no line at all" in output
    assert "where run two goes on from position 36" in output


@pytest.mark.parametrize("shared", [None, "one"])
def test_lines_of_earlier_releases_are_read_by_positions_and_clocks(
    tmp_path: Path, shared: str | None
) -> None:
    first = Ranks(tmp_path, DATA, FULL, world_size=2, shared=shared)
    states = first.state(first.epoch(num_steps=8))
    resumed = Ranks(tmp_path, DATA, FULL, world_size=3, shared=shared and "two")
    resumed.epoch(*states[:2])
    for path in tmp_path.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            del line["resumed"], line["written"]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [epoch] = document("certify", tmp_path)["orders"][0]["epochs"]
    assert epoch["verdict"] == f"epoch 0: every one of {NUM} samples exactly once"
    assert epoch["world_sizes"] == [2, 3]
    # A rank without its lines is found as before.
    sorted(tmp_path.glob("*-00001.jsonl"))[-1].unlink()
    assert "rank 1 of" in run("certify", tmp_path, exit_code=1).stdout


def test_memory_does_not_grow_with_the_lines_of_a_pass(tmp_path: Path) -> None:
    Ranks(tmp_path, Data(3000), FullSampler(3000), batch_size=1).epoch(every=1)
    coverage = read_coverage(tmp_path)
    [process] = coverage.processes
    [each] = coverage.passes(process)
    assert process.num_lines == 3000
    assert list(each.ends) == [3000]
    [path] = tmp_path.glob("*.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    coverage = read_coverage(tmp_path)
    [each] = coverage.passes(coverage.processes[0])
    assert list(each.ends) == list(range(2936, 3000))


def peak_bytes(directory: Path, *, num_ranks: int, num_epochs: int) -> int:
    """Certify a training, and return the most memory that it takes."""
    path = directory / f"{num_ranks} {num_epochs}"
    ranks = Ranks(path, DATA, FULL, world_size=num_ranks, shared="one")
    for epoch in range(num_epochs):
        ranks.epoch(epoch, every=100)
    tracemalloc.start()
    try:
        coverage = read_coverage(path)
        [run] = read_runs(coverage, coverage.processes)
        verdicts = [verdict_of(*each) for each in lineage_of([run], []).items()]
        assert len(verdicts) == num_epochs
        assert not any(verdict.faults for verdict in verdicts)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_finished_epoch_leaves_its_verdict_however_many_ranks_read_it(tmp_path: Path) -> None:
    peak_bytes(tmp_path, num_ranks=1, num_epochs=1)
    growth = {
        num_ranks: peak_bytes(tmp_path, num_ranks=num_ranks, num_epochs=22)
        - peak_bytes(tmp_path, num_ranks=num_ranks, num_epochs=2)
        for num_ranks in (2, 40)
    }
    # For 38 more ranks each epoch kept 3 kB a rank: 2.3 MB. Python keeps some empty tuples.
    assert growth[40] - growth[2] < 1_000_000, growth


def test_lines_of_another_rank_in_a_file_are_a_fault(tmp_path: Path) -> None:
    first, *others = written(tmp_path)
    first.write_text(first.read_text() + others[0].read_text())
    output = run("certify", tmp_path, exit_code=1).stdout
    assert (
        f"line 5 of {first.name} is of other data or another order than the first, or of" in output
    )
    assert "another run or rank: a file has the lines of one loader" in output
