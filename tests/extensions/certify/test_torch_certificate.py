"""Certificates of torch's own loader: what the program got, or what a sampler gave, is proved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.utils.data

import shardwise as sw
from shardwise.engine.batch.schedule import epoch_requests
from shardwise.engine.request import BatchRequest
from shardwise.torch import BatchSampler, DistributedSampler, IterableDataset, StatefulDataLoader
from shardwise.torch import samplers as samplers_module
from tests.support.commands import document, run
from tests.support.coverage import Damaged, lines_of, plant_fault
from tests.support.ranks import Run, run_several

# More workers than cores is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

NUM, BATCH_SIZE = 101, 8
PARTS = ("iterable", "batch sampler", "sampler")


def part_of(kind: str, data: Any = None, **options: Any) -> Any:
    """One of the three, shuffled."""
    data = sw.wrap(range(NUM)) if data is None else data
    if kind == "sampler":
        options.pop("remainder", None)
        ranks = (options.pop("world_size", None), options.pop("rank", None))
        return DistributedSampler(data, *ranks, **options)
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "remainder": "uneven", **options}
    return {"iterable": IterableDataset, "batch sampler": BatchSampler}[kind](data, **options)


def loader_of(part: Any, kind: Any = StatefulDataLoader, num_workers: int = 0) -> Any:
    """torch's loader around it; a batch is a list, which may be empty."""
    options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": batch_of}
    if num_workers:
        options["multiprocessing_context"] = "fork"
    if isinstance(part, IterableDataset):
        return kind(part, batch_size=None, **options)
    data = sw.wrap(range(NUM))
    if isinstance(part, BatchSampler):
        return kind(data, batch_sampler=part, **options)
    return kind(data, batch_size=BATCH_SIZE, sampler=part, **options)


def batch_of(rows: Any) -> list[int]:
    rows = rows["__index__"].tolist() if isinstance(rows, dict) else [row["value"] for row in rows]
    return [int(row) for row in rows]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", PARTS)
def test_it_counts_what_the_program_has_and_not_what_workers_read_ahead(
    kind: str, num_workers: int
) -> None:
    loader = loader_of(part_of(kind), num_workers=num_workers)
    assert loader.certificate()["verdict"] == "nothing was handed out yet"
    for epoch in range(2):
        for step, _ in enumerate(loader, 1):
            certificate = loader.certificate()
            assert certificate["ok"], certificate
            assert (certificate["count"], certificate["to"]) == (min(BATCH_SIZE * step, NUM),) * 2
        verdict = f"epoch {epoch}: every one of 101 samples exactly once"
        assert loader.certificate()["verdict"] == verdict


@pytest.mark.parametrize("kind", PARTS)
def test_padding_is_in_no_word(kind: str) -> None:
    loader = loader_of(part_of(kind, rank=1, world_size=4, remainder="pad"))
    for _ in loader:
        pass
    certificate = loader.certificate()
    assert certificate["ok"]
    assert certificate["count"] + certificate["padded"] == (26 if kind == "sampler" else 32)
    assert certificate["padded"] > 0


def test_doors_of_every_kind_and_other_ranks_add_up(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    doors: list[Any] = ["loader", *PARTS]
    for trial in range(4):
        directory, state = tmp_path / str(trial), None
        # Each kind first once; the last one reads to the end.
        for number, kind in enumerate(np.roll(doors, trial).tolist()):
            world_size = int(draw.integers(1, 4))
            num_workers = int(draw.integers(0, 2))
            # Three steps of 24 samples at most, of 101.
            steps = 1 if number < 3 else None
            states = [
                read(kind, directory, state, steps, num_workers, rank=r, world_size=world_size)
                for r in range(world_size)
            ]
            assert all(other == states[0] for other in states)
            state = states[0]
        [order] = document("certify", directory)["orders"]
        [epoch] = order["epochs"]
        assert epoch["ok"]
        assert epoch["handed_out"] == NUM
        assert epoch["verdict"].startswith("epoch 0: every one of 101 samples exactly once")


def read(
    kind: str, directory: Path, state: Any, steps: int | None, num_workers: int, **ranks: int
) -> dict[str, Any]:
    """Read some batches of one door on one rank, and give its state."""
    if kind == "loader":
        loader: Any = sw.DataLoader(
            sw.wrap(range(NUM)), batch_size=4, shuffle=True, remainder="uneven", executor="inline",
            coverage=directory, **ranks,
        )  # fmt: skip
    else:
        loader = loader_of(part_of(kind, coverage=directory, **ranks), num_workers=num_workers)
    if state is not None:
        loader.load_state_dict(state)
    left: dict[str, Any] = {}
    # Read to the end, since torch's workers complain when they are left in the middle: as a
    # training that was killed after its checkpoint, and whose epoch was not over.
    for step, _ in enumerate(loader, 1):
        if step == steps:
            left = loader.state_dict()
            if kind == "loader" or not num_workers:
                break
    return left or loader.state_dict()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["batch sampler", "sampler"])
def test_a_sampler_alone_counts_up_to_the_batch_that_the_program_names(
    kind: str, num_workers: int, tmp_path: Path
) -> None:
    part = part_of(kind, coverage=tmp_path)
    size = 1 if kind == "batch sampler" else BATCH_SIZE
    for step, _ in enumerate(loader_of(part, torch.utils.data.DataLoader, num_workers), 1):
        certificate = part.certificate(step * size if step < 13 else None)
        assert certificate["ok"]
        assert certificate["count"] == min(step * BATCH_SIZE, NUM)
        if step == 3:
            part.state_dict(step * size)
    assert [(line.first, line.last) for line in lines_of(tmp_path)] == [(0, 24), (24, NUM)]
    assert all(line.handed_out == line.planned for line in lines_of(tmp_path))
    whole = "epoch 0: every one of 101 samples exactly once"
    assert part.certificate(13 if size == 1 else NUM)["verdict"] == whole
    given = "of them as indices given to torch's DataLoader, which reads ahead"
    assert part.certificate()["verdict"] == f"{whole}, 101 {given}"
    [epoch] = document("certify", tmp_path)["orders"][0]["epochs"]
    assert (epoch["verdict"], epoch["given"]) == (f"{whole}, 77 {given}", 77)
    with pytest.raises(ValueError, match="num_steps=999"):
        part.certificate(999)


@pytest.mark.parametrize("kind", ["batch sampler", "sampler"])
def test_what_workers_read_ahead_of_a_kill_is_not_certified_as_handed_out(
    kind: str, tmp_path: Path
) -> None:
    for loader_kind in (torch.utils.data.DataLoader, StatefulDataLoader):
        directory = tmp_path / loader_kind.__name__
        part = part_of(kind, coverage=directory)
        loader = loader_of(part, loader_kind, num_workers=2)
        # With two batches ahead for each worker, the sampler is at its end after 9 of 13 batches.
        for step, _ in enumerate(loader, 1):
            if step == 2 and loader_kind is StatefulDataLoader:
                loader.state_dict()
            if step == 10:
                break
        [epoch] = document("certify", directory)["orders"][0]["epochs"]
        if loader_kind is StatefulDataLoader:
            assert epoch["verdict"].endswith("up to position 16 of 101 so far")
        else:
            assert f"{NUM} of them as indices given to torch's DataLoader" in epoch["verdict"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("fault", ["lost", "double", "both"])
def test_a_fault_in_a_worker_shows(
    fault: str, num_workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant_fault(monkeypatch, fault)
    loader = loader_of(part_of("iterable", coverage=tmp_path), num_workers=num_workers)
    for _ in loader:
        pass
    assert "NOT each sample once" in loader.certificate()["verdict"]
    run("certify", tmp_path, exit_code=1)


def test_a_fault_of_a_sampler_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def faulty(*args: Any, **options: Any) -> Any:
        for request in epoch_requests(*args, **options):
            if request.step == 5:
                request = BatchRequest(0, 5, np.append(request.ids[1:], request.ids[1]))
            yield request

    monkeypatch.setattr(samplers_module, "epoch_requests", faulty)
    part = part_of("batch sampler", coverage=tmp_path)
    assert len(list(part)) == 13
    assert not part.certificate()["ok"]
    assert "not the samples of the plan" in run("certify", tmp_path, exit_code=1).stdout


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_damaged_samples_of_workers_have_words_of_their_own(on_error: Any) -> None:
    part = part_of("iterable", sw.wrap(Damaged(NUM, {3, 17, 50})), on_error=on_error)
    loader = loader_of(part, num_workers=2)
    for _ in loader:
        pass
    certificate = loader.certificate()
    assert certificate["ok"]
    assert certificate["count"] == NUM - 3
    assert certificate["skipped" if on_error == "skip" else "replaced"] == 3


def test_an_iterator_that_was_left_behind_counts_for_nothing() -> None:
    part = part_of("batch sampler")
    left = iter(part)
    next(left)
    newer = iter(part)
    next(left)
    next(newer)
    certificate = part.certificate()
    assert certificate["ok"]
    assert certificate["count"] == BATCH_SIZE


def test_what_torchs_drop_last_leaves_out_is_not_claimed() -> None:
    part = part_of("sampler")
    loader = StatefulDataLoader(
        range(NUM), batch_size=BATCH_SIZE, sampler=part, drop_last=True, collate_fn=list
    )
    for _ in loader:
        pass
    verdict = "epoch 0: 96 samples between positions 0 and 96 exactly once"
    assert loader.certificate()["verdict"] == verdict


def test_workers_of_torchs_own_loader_are_refused_since_nobody_knows_what_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of("iterable", coverage=tmp_path)
    # A worker as torch starts one; ending a real one after an error takes torch 5 s.
    worker = SimpleNamespace(id=0, num_workers=1, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(torch.utils.data, "get_worker_info", lambda: worker)
        batches = iter(part)
        with pytest.raises(sw.StateError, match=r"use shardwise\.torch\.StatefulDataLoader"):
            next(batches)
    with pytest.raises(sw.StateError, match=r"use shardwise\.torch\.StatefulDataLoader"):
        part.certificate()
    # In this process the dataset itself hands out.
    part = part_of("iterable", coverage=tmp_path)
    for _ in loader_of(part, torch.utils.data.DataLoader):
        pass
    assert part.certificate()["ok"]
    assert "every one of 101 samples exactly once" in run("certify", tmp_path).stdout


def test_real_ranks_that_are_killed_are_certified_through_every_door(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "certified_doors.py"
    args = (program, tmp_path)
    killed, done = run_several(Run(args, 2, check=False), Run(args, 3), timeout=240)
    assert killed.returncode != 0, killed.stdout
    certificates = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["door"] for each in certificates] == ["iterable", "batches", "indices", "plain"]
    for certificate in certificates:
        assert (certificate["ok"], certificate["ranks"], certificate["count"]) == (True, 3, 105)
        [order] = document("certify", tmp_path / certificate["door"])["orders"]
        assert [epoch["world_sizes"] for epoch in order["epochs"]] == [[2, 3], [3]]
        for epoch in order["epochs"]:
            assert ": every one of 105 samples exactly once" in epoch["verdict"]
            assert (epoch["given"] > 0) == (certificate["door"] == "plain")
