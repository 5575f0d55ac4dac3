"""Certificates of real loaders: what was handed out is what the plan says, or it shows."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.request import BatchRows
from shardwise.loader.account import Tally
from shardwise.plan.id_word import IdWord
from tests.support.commands import document, run
from tests.support.coverage import Damaged, lines_of, plant_fault
from tests.support.ranks import Run, run_several
from tests.support.tars import make_shards

NUM = 101
PROGRAM = Path(__file__).parent / "programs" / "certified.py"


def loader(num_samples: int = NUM, **options: Any) -> sw.DataLoader:
    defaults = {"batch_size": 8, "output": "numpy", "executor": "inline", "remainder": "uneven"}
    return sw.DataLoader(sw.wrap(range(num_samples)), **(defaults | options))


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "every one of 101 samples exactly once"),
        ({"shuffle": True}, "every one of 101 samples exactly once"),
        ({"remainder": "pad"}, "every one of 101 samples exactly once, 3 rows of padding"),
        (
            {"remainder": "drop", "shuffle": True},
            "96 samples between positions 0 and 101 exactly once, 5 left out at the end",
        ),
        ({"epoch_size": 30}, "every one of 30 positions of the order exactly once"),
        ({"epoch_size": 202}, "every one of 202 positions of the order exactly once"),
        (
            {"sampler": sw.WeightedSampler([1] * NUM, num_samples=70)},
            "every one of 70 positions of the order exactly once",
        ),
        ({"executor": "threads", "num_threads": 2}, "every one of 101 samples exactly once"),
        ({"collate": list}, "every one of 101 samples exactly once"),
        ({"as_tuple": ("value",)}, "every one of 101 samples exactly once"),
        (
            {"rank": 1, "world_size": 3},
            "this rank's 34 samples between positions 0 and 101, exactly once",
        ),
    ],
)
def test_a_whole_epoch_is_certified(options: dict[str, Any], verdict: str) -> None:
    with loader(**options) as it:
        for epoch in range(2):
            for _ in it:
                pass
            certificate = it.certificate()
            assert certificate["verdict"] == f"epoch {epoch}: {verdict}"
            assert certificate["ok"]
            assert certificate["word"] == certificate["expected"]
            assert json.loads(json.dumps(certificate)) == certificate


def test_it_counts_what_was_handed_out_and_not_what_was_prefetched() -> None:
    with loader(executor="threads", num_threads=2, shuffle=True) as it:
        assert it.certificate()["verdict"] == "nothing was handed out yet"
        for step, _ in enumerate(it, 1):
            certificate = it.certificate()
            assert certificate["ok"]
            assert (certificate["count"], certificate["to"]) == (min(8 * step, NUM),) * 2


def test_a_resumed_epoch_is_certified_from_where_it_went_on() -> None:
    first = loader(shuffle=True)
    next(iter(first))
    second = loader(shuffle=True, batch_size=5)
    second.load_state_dict(first.state_dict())
    for _ in second:
        pass
    certificate = second.certificate()
    assert (certificate["from"], certificate["to"], certificate["count"]) == (8, NUM, NUM - 8)
    assert certificate["ok"]


def test_a_batch_that_the_program_changes_still_counts_as_it_was() -> None:
    it = loader()
    for batch in it:
        batch["__index__"] += 1
    assert it.certificate()["ok"]


@pytest.mark.extension
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("remainder", ["uneven", "pad"])
def test_damaged_samples_are_counted_and_the_rest_is_certified(
    on_error: Any, remainder: Any, tmp_path: Path
) -> None:
    it = sw.DataLoader(
        sw.wrap(Damaged(NUM, {3, 17, 50})),
        batch_size=8,
        shuffle=True,
        remainder=remainder,
        on_error=on_error,
        output="numpy",
        coverage=tmp_path,
    )
    ids = np.concatenate([b["__index__"][b.get("__valid__", slice(None))] for b in it])
    words = {"skip": "skipped as damaged", "replace": "replaced by others"}[on_error]
    certificate = it.certificate()
    assert certificate["ok"]
    assert certificate["count"] == NUM - 3 == len(set(ids.tolist()))
    assert f"3 {words}" in certificate["verdict"]
    assert f"98 of 101 samples exactly once, 3 {words}" in run("certify", tmp_path).stdout


@pytest.mark.parametrize("kind", ["lost", "double", "both"])
def test_a_fault_of_the_engine_shows(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant_fault(monkeypatch, kind)
    it = loader(shuffle=True, coverage=tmp_path)
    for _ in it:
        pass
    certificate = it.certificate()
    assert not certificate["ok"]
    assert "NOT each sample once" in certificate["verdict"]
    run("certify", tmp_path, exit_code=1)


@pytest.mark.parametrize("size", [1, 64, 4_095, 4_096, 4_097, 9_000])
def test_batches_of_any_size_add_up(size: int) -> None:
    word = IdWord("a", 0)
    tally = Tally(lambda: word)
    for start in range(0, 10_000, size):
        tally.add(BatchRows(np.arange(start, min(start + size, 10_000))))
    counted = tally.take()
    assert (counted.handed_out.count, counted.handed_out.word) == (
        10_000,
        word.of_range(range(10_000)),
    )
    assert tally.take().handed_out.count == 0


@pytest.mark.extension
def test_a_line_is_written_at_each_state_and_at_an_epochs_end(tmp_path: Path) -> None:
    it = loader(coverage=tmp_path / "new" / "directory", shuffle=True)
    batches = iter(it)
    it.state_dict()
    for _ in range(3):
        next(batches)
    it.certificate()
    it.state_dict()
    it.state_dict()
    for _ in batches:
        pass
    it.state_dict()
    lines = lines_of(tmp_path / "new" / "directory")
    assert [(line.first, line.last, line.is_end) for line in lines] == [
        (0, 24, False),
        (24, NUM, True),
    ]
    assert all(line.handed_out == line.planned for line in lines)
    # A pass that was given up has no part in what follows.
    next(iter(it))
    for _ in it:
        pass
    output = run("certify", tmp_path / "new" / "directory").stdout
    assert "epoch 1: every one of 101 samples exactly once" in output


def test_a_state_names_the_run_that_wrote_the_lines_before_it(tmp_path: Path) -> None:
    assert "run" not in loader().state_dict()
    it = loader(coverage=tmp_path)
    assert "run" not in it.state_dict()
    next(iter(it))
    state = it.state_dict()
    [line] = lines_of(tmp_path)
    assert state["run"] == line.run
    assert line.began <= line.written <= time.time()
    again = loader(coverage=tmp_path)
    again.load_state_dict(state)
    assert again.state_dict() == state
    next(iter(again))
    assert again.state_dict()["run"] not in ("", line.run)
    assert {line.resumed for line in lines_of(tmp_path)} == {"", line.run}
    loader().load_state_dict(state)


def test_ranks_without_an_id_in_common_take_equal_states(tmp_path: Path) -> None:
    ranks = [loader(coverage=tmp_path, rank=r, world_size=2) for r in range(2)]
    for it in ranks:
        next(iter(it))
    states = [it.state_dict() for it in ranks]
    assert states[0] == states[1]
    assert "run" not in states[0]


@pytest.mark.extension
def test_ranks_of_a_launcher_have_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("MASTER_PORT", "4000")
    ranks = [loader(coverage=tmp_path, rank=r, world_size=2) for r in range(2)]
    for it in ranks:
        next(iter(it))
        state = it.state_dict()
        assert state["run"] == "job_7-2-4000"
        it.load_state_dict(state)
        list(it)
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert names == [f"job_7-2-4000{n}-{rank:05d}.jsonl" for n in ("", ".1") for rank in range(2)]
    assert "every one of 101 samples exactly once" in run("certify", tmp_path).stdout


@pytest.mark.extension
def test_a_loader_that_travels_writes_a_file_of_its_own(tmp_path: Path) -> None:
    it = loader(coverage=tmp_path)
    next(iter(it))
    it.state_dict()
    other = pickle.loads(pickle.dumps(it))
    for _ in other:
        pass
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert "every one of 101" in run("certify", tmp_path).stdout


def _go_on(batches: Iterator[Any], it: sw.DataLoader) -> None:
    it.state_dict()
    for _ in it:
        pass


@pytest.mark.extension
def test_a_forked_process_does_not_write_what_its_parent_handed_out(tmp_path: Path) -> None:
    it = loader(coverage=tmp_path)
    batches = iter(it)
    next(batches)
    child = multiprocessing.get_context("fork").Process(target=_go_on, args=(batches, it))
    child.start()
    child.join()
    assert child.exitcode == 0
    it.state_dict()
    assert sorted((line.first, line.last) for line in lines_of(tmp_path)) == [(0, 8), (8, NUM)]
    assert "every one of 101" in run("certify", tmp_path).stdout


def test_a_directory_that_can_not_be_written_is_refused_where_the_loader_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sw.StorageError, match="leave coverage= out"):
        loader(coverage=tmp_path / "file")
    with pytest.raises(ValueError, match="local directory"):
        loader(coverage="s3://bucket/coverage")


@pytest.mark.extension
def test_a_line_that_found_the_disk_full_is_written_whole_by_the_next_state(
    tmp_path: Path,
) -> None:
    it = loader(coverage=tmp_path)
    batches = iter(it)
    next(batches)
    it.state_dict()
    next(batches)
    [path] = tmp_path.glob("*.jsonl")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(sw.StorageError, match="coverage="):
                it.state_dict()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    for _ in batches:
        pass
    assert "every one of 101 samples exactly once" in run("certify", tmp_path).stdout


def test_a_directory_that_goes_away_is_an_error_and_no_silent_gap(tmp_path: Path) -> None:
    it = loader(coverage=tmp_path / "coverage")
    next(iter(it))
    (tmp_path / "coverage").rmdir()
    with pytest.raises(sw.StorageError, match="coverage="):
        it.state_dict()


@pytest.mark.extension
def test_ranks_that_are_killed_at_any_moment_are_certified_over_all_runs(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", range(6, 16))
    coverage = tmp_path / "coverage"
    program = (PROGRAM, *shards, tmp_path)
    killed, done = run_several(Run(program, 2, check=False), Run(program, 3))
    assert killed.returncode != 0, killed.stdout
    certificates = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # The process group's: of all ranks, and the same on each.
    assert len(certificates) == 3
    assert all(c == certificates[0] for c in certificates)
    assert (certificates[0]["ok"], certificates[0]["ranks"]) == (True, 3)
    assert certificates[0]["verdict"] == "epoch 1: every one of 105 samples exactly once"
    found = document("certify", coverage, *shards)
    verdicts = [epoch["verdict"] for epoch in found["orders"][0]["epochs"]]
    assert verdicts == [f"epoch {e}: every one of 105 samples exactly once" for e in range(2)]
    assert found["orders"][0]["epochs"][0]["world_sizes"] == [2, 3]
    # The ranks of a process group know that they are one run, and the state names the one before.
    runs = {(line.run, line.resumed) for line in lines_of(coverage)}
    (first,) = (run for run, resumed in runs if not resumed)
    assert {resumed for _, resumed in runs} == {"", first}
    assert len(runs) == 2
