"""`shardwise certify` of two jobs in one directory, positions read twice, and edited lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.plan import FullSampler
from tests.extensions.certify.test_coverage_lines import DATA, FULL, NUM
from tests.support.commands import document, run
from tests.support.coverage import Data, Ranks


def loader(coverage: Path, **options: Any) -> sw.DataLoader:
    data = sw.wrap(list(range(20)))
    return sw.DataLoader(data, 5, shuffle=True, executor="inline", coverage=coverage, **options)


def test_an_epoch_that_is_named_again_after_its_end_is_a_fault(tmp_path: Path) -> None:
    it = loader(tmp_path)
    for _ in range(2):
        it.set_epoch(0)
        list(it)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "epoch 0: NOT every one of 20" in output
    assert "rank 0 of 1: positions 0 to 20 were handed out in pass 1 and again in pass 2" in output


def test_going_back_to_a_checkpoint_in_one_process_is_none(tmp_path: Path) -> None:
    it = loader(tmp_path)
    batches = iter(it)
    next(batches)
    state = it.state_dict()
    next(batches)
    it.state_dict()
    for _ in range(2):
        it.load_state_dict(state)
        list(it)
    assert "epoch 0: every one of 20 samples exactly once" in run("certify", tmp_path).stdout


def test_two_jobs_at_the_same_time_are_a_fault_and_one_after_the_other_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("shardwise.loader.account.time.time", lambda: now)
    one, other = loader(tmp_path / "at once"), loader(tmp_path / "at once")
    for each in (one, other, one):
        list(each)
        now += 60
    output = run("certify", tmp_path / "at once", exit_code=1).stdout
    assert "were under way at the same time on rank 0" in output
    for _ in range(2):
        again = loader(tmp_path / "in turn")
        list(again)
        now += 60
        list(again)
        now -= 5  # the next machine's clock is behind
    assert document("certify", tmp_path / "in turn")["ok"]


@pytest.mark.parametrize(
    "change", [{"batch_size": 4}, {"num_samples": 10**6}, {"remainder": "pad"}, {"begin": 0}]
)
def test_a_line_that_contradicts_the_others_of_its_pass_is_a_fault(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    Ranks(tmp_path, DATA, FULL, world_size=2).epoch(0, 60, every=20)
    path = sorted(tmp_path.glob("*.jsonl"))[1]
    lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | change)
    path.write_text("\n".join(lines) + "\n")
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "epoch 0: NOT every one" in output
    assert "rank 1 of 2 has" in output or "rank 0 of 2 has" in output


@pytest.mark.parametrize("missing", ["file", "line"])
def test_a_rank_without_a_line_where_others_ended_the_last_epoch_is_a_fault(
    tmp_path: Path, missing: str
) -> None:
    Ranks(tmp_path, DATA, FULL, world_size=2, shared="one").epoch(num_steps=1)
    Ranks(tmp_path, DATA, FULL, world_size=2, shared="two").epoch(0, 6, every=5)
    path = tmp_path / "two-00001.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("" if missing == "file" else "".join(lines[1:]))
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "run two, rank 1 of 2 has no line" in output
    assert f"up to position 6 of {NUM} so far" not in output


def test_ranks_of_an_order_without_a_closed_form_come_to_all_of_its_places(tmp_path: Path) -> None:
    sampler = sw.WeightedSampler([1] * NUM, num_samples=60)
    Ranks(tmp_path, DATA, sampler, world_size=2).epoch()
    path = sorted(tmp_path.glob("*.jsonl"))[1]
    lines = path.read_text().splitlines()
    line = json.loads(lines[0])
    for name in ("handed_out", "planned"):
        line[name][0] += 1
    lines[0] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n")
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "do not add up to the epoch: 61 samples for 60" in output


def test_a_thousand_ranks_with_one_file_missing_are_told_by_rank(tmp_path: Path) -> None:
    Ranks(tmp_path, Data(4000), FullSampler(4000), world_size=1000, shared="one").epoch()
    (tmp_path / "one-00077.jsonl").unlink()
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "run one, rank 77 of 1000 has no line at all" in output
