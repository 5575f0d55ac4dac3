"""`shardwise certify` of several trainings in one directory: what it proves is one training."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch.distributed as dist

import shardwise as sw
from shardwise.base import process_group
from shardwise.plan import FullSampler
from tests.support.commands import document, run
from tests.support.coverage import Data, Ranks, lines_of

NUM, NUM_EPOCHS = 48, 2
DATA, ORDER = Data(NUM), FullSampler(NUM, seed=1)
STEP_S, PAUSE_S, SKEW_S = 20.0, 40.0, 10.0
SCRATCH = (0, 0, "")


@dataclass
class Attempt:
    """What came of a run.

    `is_whole` says whether each rank ended the last epoch, `is_torn` whether only some ranks ended
    one; `counts` whether it has lines of all ranks up to some position, or is torn.
    """

    files: list[Path]
    world_size: int
    began: float
    is_whole: bool = False
    is_torn: bool = False
    counts: bool = False
    states: list[tuple[int, int, str]] = field(default_factory=list)


class Cluster:
    """Machines whose clocks differ by up to 10 s, and trainings on them, one after the other."""

    def __init__(self, directory: Path, draw: random.Random, monkeypatch: pytest.MonkeyPatch):
        self.directory, self.draw = directory, draw
        self.now, self.num_runs = 1.8e9, 0
        self.clocks = [draw.uniform(0, SKEW_S) for _ in range(4)]
        self.time = 0.0
        monkeypatch.setattr("shardwise.loader.account.time.time", lambda: self.time)

    def at_rank(self, rank: int) -> None:
        self.time = self.now + self.clocks[rank]

    def train(
        self,
        start: tuple[int, int, str] = SCRATCH,
        *,
        is_shared: bool = True,
        world_size: int = 2,
        num_steps: int = 10**6,
        deaths: dict[int, int] | None = None,
        pause: float | None = None,
    ) -> Attempt:
        """Train up to the last epoch's end, or for some steps.

        `deaths` has the steps at which ranks die.
        """
        self.now += self.draw.uniform(PAUSE_S, 3 * PAUSE_S) if pause is None else pause
        self.num_runs += 1
        before = set(self.directory.glob("*.jsonl"))
        epoch, position, resumed = start
        ranks = Ranks(
            self.directory,
            DATA,
            ORDER,
            world_size=world_size,
            batch_size=4,
            shared=f"run{self.num_runs}" if is_shared else None,
            resumed=resumed,
            at_rank=self.at_rank,
        )
        attempt = Attempt([], world_size, self.now)
        alive, step = list(range(world_size)), 0
        for number in range(epoch, NUM_EPOCHS):
            passes = ranks.begin(number, position if number == epoch else 0)
            while passes[alive[0]].num_batches < passes[0].num_steps:
                alive = [r for r in alive if (deaths or {}).get(r, 10**6) > step]
                if step == num_steps:
                    # A checkpoint that some ranks came to.
                    ranks.note(passes, self.draw.sample(alive, self.draw.randrange(len(alive) + 1)))
                    break
                self.now += STEP_S
                ranks.step(passes, alive)
                step += 1
                if passes[alive[0]].is_whole or self.draw.random() < 0.4:
                    ranks.note(passes, alive)
                    if len(alive) == world_size:
                        attempt.states.append(ranks.state(passes))
            if step == num_steps or not passes[alive[0]].is_whole:
                break
            attempt.is_torn |= len(alive) < world_size
        else:
            attempt.is_whole = len(alive) == world_size
        attempt.counts = bool(attempt.states) or attempt.is_torn
        attempt.files = sorted(set(self.directory.glob("*.jsonl")) - before)
        return attempt


def random_history(cluster: Cluster) -> Attempt:
    """Trainings that are killed, resumed from any checkpoint, given up; the newest that counts."""
    draw = cluster.draw
    share = draw.choice([1.0, 1.0, 0.0, 0.5])
    states, newest = [SCRATCH], None
    num_runs = draw.randint(1, 6)
    while newest is None or num_runs > 0:
        num_runs -= 1
        at = draw.choice([0, len(states) - 1, len(states) - 1, draw.randrange(len(states))])
        if share < 1:
            # Without ids a state does not say whose it is: what came after it is given up.
            states = states[: at + 1]
        while states[at][0] == NUM_EPOCHS:
            at -= 1
        world_size = draw.choice([1, 2, 2, 3, 4])
        is_last = num_runs <= 0
        deaths = {}
        if draw.random() < (0.4 if is_last else 0.1) and world_size > 1:
            deaths = {draw.randrange(1, world_size): draw.randint(0, 8)}
        attempt = cluster.train(
            states[at],
            is_shared=draw.random() < share,
            world_size=world_size,
            num_steps=10**6 if is_last else draw.randint(1, 14),
            deaths=deaths,
        )
        states += attempt.states
        newest = attempt if attempt.counts else newest
    return newest


def damage(newest: Attempt, draw: random.Random) -> str:
    """Damage a file of the newest run; returns how, or "" where nothing was done."""
    kind = draw.choice(["missing", "copied", "doubled", "cut", "", "", ""])
    path = draw.choice(newest.files)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    if kind == "missing" and newest.world_size > 1:
        path.unlink()
    elif kind == "copied":
        path.with_name(f"copy of {path.name}").write_text(text)
    elif kind == "doubled":
        path.write_text(text + draw.choice(lines))
    elif kind == "cut":
        path.write_text(text[: -draw.randint(1, len(lines[-1]))])
    else:
        return ""
    return kind


def check_histories(directory: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"proved": 0, "refused": 0, "so far": 0}
    for seed in seeds:
        shutil.rmtree(directory, ignore_errors=True)
        draw = random.Random(seed)
        cluster = Cluster(directory, draw, monkeypatch)
        newest = random_history(cluster)
        is_long = newest.is_whole and cluster.now - newest.began > 2 * STEP_S
        is_twice = is_long and draw.random() < 0.15
        if is_twice:
            cluster.now = newest.began
            cluster.train(world_size=newest.world_size, pause=draw.uniform(0, STEP_S))
        kind = damage(newest, draw) if newest.is_whole else ""
        found = json.loads(run_any("certify", directory, "--json"))
        epochs = [epoch for order in found["orders"] for epoch in order["epochs"]]
        is_proved = (
            found["ok"]
            and [epoch["epoch"] for epoch in epochs] == list(range(NUM_EPOCHS))
            and all(epoch["is_complete"] for epoch in epochs)
        )
        case = (seed, newest, kind, is_twice)
        if kind or is_twice or not newest.is_whole:
            assert not is_proved, case
            if newest.is_torn or is_twice or kind in ("copied", "doubled"):
                assert not found["ok"], case
        else:
            assert is_proved, (case, found)
        outcomes["proved" if is_proved else "so far" if found["ok"] else "refused"] += 1
    assert min(outcomes["proved"], outcomes["refused"]) >= len(seeds) // 10, outcomes


def run_any(*arguments: object) -> str:
    """What a command writes, whatever its exit code."""
    try:
        return run(*arguments).stdout
    except AssertionError:
        return run(*arguments, exit_code=1).stdout


def test_no_mixture_of_runs_is_a_false_proof_or_a_false_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_histories(tmp_path / "coverage", range(60), monkeypatch)


@pytest.mark.long
def test_no_false_proof_and_no_false_alarm_over_2000_mixtures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_histories(tmp_path / "coverage", range(60, 2060), monkeypatch)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_training_that_was_given_up_does_not_stand_in_for_a_killed_rank(
    is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    assert cluster.train(is_shared=is_shared).is_whole
    cluster.train(is_shared=is_shared, deaths={1: 0})
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "rank 1 of 2 has no line at all" in output


def test_two_jobs_at_once_are_seen_in_their_first_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    cluster.train(world_size=1, num_steps=12)
    cluster.now -= 12 * STEP_S
    cluster.train(world_size=1, num_steps=12)
    output = run("certify", tmp_path, exit_code=1).stdout
    assert "runs run1 and run2 were under way at the same time on rank 0" in output


@pytest.mark.parametrize("num_steps", [9, 18])
def test_a_clock_that_is_set_back_within_a_run_is_no_second_job(
    num_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    at_rank = cluster.at_rank

    def ahead_at_first(rank: int) -> None:
        at_rank(rank)
        cluster.time += 10**6 * (cluster.num_runs == 1 and not any(tmp_path.iterdir()))

    cluster.at_rank = ahead_at_first  # type: ignore[method-assign]
    first = cluster.train(world_size=1, num_steps=num_steps)
    assert max(line.written for line in lines_of(tmp_path)) > cluster.now + 10**5
    cluster.train(first.states[-1], world_size=1)
    assert document("certify", tmp_path)["ok"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_of_a_group_have_one_run_in_whichever_order_their_loaders_begin(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(process_group, "group_store", lambda: store)

    def read(name: str, num_samples: int, rank: int, world_size: int) -> None:
        monkeypatch.setattr(process_group, "group_rank_and_size", lambda: (rank, 2))
        ranks = {"rank": rank, "world_size": world_size}
        list(sw.DataLoader(range(num_samples), 2, num_threads=0, coverage=tmp_path / name, **ranks))

    read("evaluation", 9, 0, world_size)
    for rank in range(2):
        read("training", 12, rank, 2)
    if world_size == 2:
        read("evaluation", 9, 1, 2)
    for name, count in (("training", 2), ("evaluation", world_size)):
        assert len(lines_of(tmp_path / name)) == count
        assert document("certify", tmp_path / name)["ok"]


def test_of_two_resumes_from_one_checkpoint_the_second_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    first = cluster.train(num_steps=4)
    cluster.train(first.states[-1])
    cluster.train(first.states[-1], world_size=3)
    epochs = document("certify", tmp_path)["orders"][0]["epochs"]
    assert [epoch["runs"] for epoch in epochs] == [["run1", "run3"], ["run3"]]


def test_ranks_without_an_id_in_common_that_may_be_of_two_runs_can_not_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PAUSE_S", 0.0)
    monkeypatch.setattr(f"{__name__}.STEP_S", 0.1)
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    cluster.train(is_shared=False)
    cluster.train(is_shared=False, deaths={1: 0})
    output = run("certify", tmp_path, exit_code=1).stdout
    assert (
        "can't tell which lines are of one run: ranks were started from this position 1 to 2"
        in output
    )


def test_a_training_begun_again_under_the_launchers_id_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that catches an error and makes another loader, without a process group.
    cluster = Cluster(tmp_path, random.Random(0), monkeypatch)
    assert cluster.train(num_steps=4).states
    cluster.num_runs -= 1
    assert cluster.train().is_whole
    run("certify", tmp_path, exit_code=1)
