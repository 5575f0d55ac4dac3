"""Ranks that hand out batches and write coverage, without data, threads or torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.base.errors import DataError
from shardwise.engine.batch import builder
from shardwise.engine.request import BatchRows
from shardwise.loader.account import Account
from shardwise.loader.position import Pass
from shardwise.plan import Plan, Remainder, Sampler
from shardwise.plan.coverage_line import CoverageLine

# (rank, step, rows) -> rows that are handed out in their place.
Fault = Callable[[int, int, BatchRows], BatchRows]


@dataclass(frozen=True)
class Data:
    """As much of a dataset as an account asks for."""

    num_samples: int
    fingerprint: str = "0123456789abcdef"

    def __len__(self) -> int:
        return self.num_samples


class Damaged:
    """Numbers, some of which can't be read."""

    def __init__(self, num_samples: int, bad: Collection[int]) -> None:
        self.num_samples, self.bad = num_samples, bad

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise DataError("damaged", index=index)
        return index


def lines_of(directory: Path) -> list[CoverageLine]:
    texts = [path.read_text() for path in sorted(directory.glob("*.jsonl"))]
    return [CoverageLine.from_text(line) for text in texts for line in text.splitlines()]


class Ranks:
    """All ranks of one run, in step; they write into a coverage directory.

    `shared` is the run's name, as a process group would give it; None for one a rank. `resumed` is
    the run whose state they load. With `on_error` "skip" or "replace" every 13th sample is damaged;
    `fault` changes what is handed out; `at_rank` is called before anything that a rank does.
    """

    def __init__(
        self,
        directory: Path,
        data: Data,
        sampler: Sampler,
        *,
        batch_size: int = 3,
        world_size: int = 1,
        remainder: Remainder = "uneven",
        shared: str | None = None,
        resumed: str = "",
        on_error: str = "raise",
        fault: Fault | None = None,
        at_rank: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self.data, self.fault, self.on_error, self.at_rank = data, fault, on_error, at_rank
        self.plan = Plan(
            len(data),
            sampler=sampler,
            batch_size=batch_size,
            world_size=world_size,
            remainder=remainder,
        )
        self.accounts = [Account(data, directory) for _ in range(world_size)]
        for account in self.accounts:
            account.resume(resumed)
            if shared is not None:
                assert account._file is not None
                account._file._run = (shared, True)

    def state(self, passes: list[Pass]) -> tuple[int, int, str]:
        """Epoch, position and run of a state that is taken now."""
        return (*passes[0].after(), self.accounts[0].state_run)

    def begin(self, epoch: int = 0, start: int = 0) -> list[Pass]:
        passes = []
        for rank, account in enumerate(self.accounts):
            self.at_rank(rank)
            current = Pass(epoch, start, self.plan.resumed(start))
            account.begin(current, rank=rank)
            passes.append(current)
        return passes

    def step(self, passes: list[Pass], ranks: Iterable[int] | None = None) -> None:
        """Hand out a batch; on some ranks only, if wanted."""
        for rank in range(len(passes)) if ranks is None else ranks:
            account, current = self.accounts[rank], passes[rank]
            plan, step = current.plan, current.num_batches
            positions, valid = plan.positions(current.epoch, range(step, step + 1), rank)
            ids = plan.ids(current.epoch, positions[valid])
            is_bad = (ids % 13 == 5) & (self.on_error != "raise")
            damaged = "skipped" if self.on_error == "skip" else "replaced"
            num_padded = int(np.count_nonzero(~valid))
            rows = BatchRows(ids[~is_bad], num_padded=num_padded, **{damaged: ids[is_bad]})
            if self.fault is not None:
                rows = self.fault(rank, step, rows)
            account.add(rows)
            current.num_batches += 1

    def note(self, passes: list[Pass], ranks: Iterable[int] | None = None) -> None:
        """Write lines, as `state_dict()` and an epoch's end do; on some ranks only, if wanted."""
        for rank in range(len(passes)) if ranks is None else ranks:
            self.at_rank(rank)
            self.accounts[rank].note(passes[rank])

    def epoch(
        self, epoch: int = 0, start: int = 0, *, every: int = 2, num_steps: int | None = None
    ) -> list[Pass]:
        """Go through an epoch to its end, or for some steps, with a line every so many of them."""
        passes = self.begin(epoch, start)
        for step in range(passes[0].plan.num_steps if num_steps is None else num_steps):
            self.step(passes)
            if step % every == every - 1:
                self.note(passes)
        self.note(passes)
        return passes


def random_chain(directory: Path, data: Data, sampler: Sampler, *, seed: int) -> int:
    """A training of two epochs that is killed and resumed on other ranks, until it ends.

    A checkpoint is saved once all ranks have written their lines, and some ranks have written
    theirs of a checkpoint that a kill prevented. Returns the number of runs.
    """
    draw = random.Random(seed)
    states = [(0, 0, "")]  # what checkpoints hold, the newest last
    shares_runs = draw.random() < 0.7
    for run in range(1, 1000):
        # Now and then an older checkpoint: it keeps what came before, and undoes the rest.
        if len(states) > 1 and draw.random() < 0.2:
            states = states[: draw.randrange(1, len(states))]
        epoch, start, resumed = states[-1]
        ranks = Ranks(
            directory,
            data,
            sampler,
            batch_size=draw.randint(1, 8),
            # Among them primes, and more ranks than the 7 lanes of a window shuffle.
            world_size=draw.choice([1, 2, 3, 4, 5, 6, 7, 11, 13]),
            on_error=draw.choice(["raise", "skip", "replace"]),
            remainder=draw.choice(["uneven", "pad", "drop"]),
            shared=f"run{run}" if shares_runs else None,
            resumed=resumed,
        )
        steps_left = draw.randint(1, 60) if draw.random() < 0.9 else 10**6
        while epoch < 2:
            passes = ranks.begin(epoch, start)
            while passes[0].num_batches < passes[0].plan.num_steps:
                if not steps_left:
                    # Killed at a checkpoint that not all ranks have come to.
                    some = draw.sample(range(len(passes)), draw.randrange(len(passes)))
                    ranks.note(passes, some)
                    break
                ranks.step(passes)
                steps_left -= 1
                if draw.random() < 0.3:
                    ranks.note(passes)
                    states.append(ranks.state(passes))
            else:
                ranks.note(passes)  # the epoch's end
                epoch, start = epoch + 1, 0
                if draw.random() < 0.8:
                    states.append(ranks.state(passes))
                continue
            break
        else:
            return run
    raise AssertionError("the training never ended")


def plant_fault(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Make the engine change batch 5: a sample "lost", a "double", or "both" at the right count."""
    rows_of = builder._rows

    def faulty(request: Any, ids: Any, kept: Any, *, is_plain: bool) -> BatchRows:
        rows = rows_of(request, ids, kept, is_plain=is_plain)
        if request.step != 5:
            return rows
        changed = {"lost": ids[1:], "double": np.append(ids, ids[0])}
        return BatchRows(changed.get(kind, np.append(ids[1:], ids[1])))

    monkeypatch.setattr(builder, "_rows", faulty)
