"""The ledger: which rank trained which samples in which step, over all runs of one training.

Each rank appends lines to a file of its own after each optimizer step. A run that is killed
leaves lines of steps that no checkpoint holds: that work is undone, and the next run does those
steps again. `read` tells the two apart by the checkpoint that each run says it started from.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Account", "EpochUse", "Ledger", "Run", "Step", "read"]


class Ledger:
    """The lines of one rank of one run; each is in the file when the call returns."""

    def __init__(self, directory: Path, *, run: int, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"run-{run}-rank-{rank}.jsonl"
        self._file = path.open("w", buffering=1)
        self._run = run
        self._rank = rank

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def start(self, *, world_size: int, resumed_from: tuple[int, int] | None) -> None:
        """The first line; `resumed_from` is the checkpoint's (run, step)."""
        self._write("start", world_size=world_size, resumed_from=resumed_from, pid=os.getpid())

    def trained(self, *, epoch: int, step: int, ids: Sequence[int]) -> None:
        """The optimizer step is done; `step` counts from 1 over the whole training."""
        self._write("step", epoch=epoch, step=step, ids=ids)

    def tested(self, *, epoch: int, accuracy: float) -> None:
        """The test after an epoch."""
        self._write("test", epoch=epoch, accuracy=accuracy)

    def _write(self, kind: str, **values: Any) -> None:
        line = json.dumps({"kind": kind, "run": self._run, "rank": self._rank, **values})
        self._file.write(line + "\n")


@dataclass
class Step:
    """One optimizer step of one run: the ids that its ranks took, and how many ranks wrote."""

    run: Run
    number: int
    epoch: int
    ids: list[int] = field(default_factory=list)
    num_ranks: int = 0


@dataclass
class Run:
    """One start of the training."""

    number: int
    world_size: int
    resumed_from: tuple[int, int] | None
    pids: list[int] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last step that any rank has finished; where it began if there is none yet."""
        return max(self.steps, default=self.resumed_from[1] if self.resumed_from else 0)


@dataclass(frozen=True)
class EpochUse:
    """How often the samples of the data were used in one epoch, in the steps that count."""

    epoch: int
    num_steps: int
    once: int
    more: int
    never: int
    world_sizes: tuple[int, ...]


@dataclass
class Account:
    """All runs of one training, in order, and which of their steps are part of the model."""

    runs: list[Run]

    def _keeps(self) -> dict[int, int]:
        """The last step of each run that the final model holds, found from the end backwards."""
        keeps: dict[int, int] = {}
        by_number = {run.number: run for run in self.runs}
        run, limit = (self.runs[-1], self.runs[-1].last_step) if self.runs else (None, 0)
        while run is not None:
            keeps[run.number] = limit
            if run.resumed_from is None:
                break
            number, limit = run.resumed_from
            run = by_number[number]
        return keeps

    def kept(self) -> list[Step]:
        """The steps that the final model holds."""
        keeps = self._keeps()
        return [step for step in self._steps() if step.number <= keeps.get(step.run.number, 0)]

    def undone(self) -> list[Step]:
        """The steps that were done and lost, because no checkpoint holds them."""
        keeps = self._keeps()
        return [step for step in self._steps() if step.number > keeps.get(step.run.number, 0)]

    def repeated_alike(self) -> bool:
        """Whether each step that was done again had the samples of the first time.

        Of the step in which the kill fell, only some ranks may have written their line.
        """
        again = {step.number: set(step.ids) for step in self.kept()}
        for step in self.undone():
            same = again.get(step.number, set())
            complete = step.num_ranks == step.run.world_size
            if not (set(step.ids) == same if complete else set(step.ids) <= same):
                return False
        return True

    def _steps(self) -> list[Step]:
        return [step for run in self.runs for step in run.steps.values()]

    def epochs(self, num_samples: int) -> list[EpochUse]:
        """For each epoch, how many of the ids 0..num_samples-1 were used once, more, never."""
        ids: dict[int, list[int]] = defaultdict(list)
        steps: Counter[int] = Counter()
        world_sizes: dict[int, dict[int, None]] = defaultdict(dict)  # in the order of the runs
        for step in self.kept():
            ids[step.epoch] += step.ids
            steps[step.epoch] += 1
            world_sizes[step.epoch][step.run.world_size] = None
        uses = []
        for epoch in sorted(ids):
            counts = Counter(ids[epoch])
            stray = [i for i in counts if not 0 <= i < num_samples]
            if stray:
                raise ValueError(f"epoch {epoch} has ids outside 0..{num_samples - 1}: {stray[:5]}")
            once = sum(count == 1 for count in counts.values())
            uses.append(
                EpochUse(
                    epoch=epoch,
                    num_steps=steps[epoch],
                    once=once,
                    more=len(counts) - once,
                    never=num_samples - len(counts),
                    world_sizes=tuple(world_sizes[epoch]),
                )
            )
        return uses


def read(directory: Path) -> Account:
    """Read the lines of all ranks of all runs; the one that a kill cut short does not count."""
    runs: dict[int, Run] = {}
    for path in sorted(directory.glob("run-*-rank-*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                _enter(runs, json.loads(line))
    return Account([runs[number] for number in sorted(runs)])


def _enter(runs: dict[int, Run], line: dict[str, Any]) -> None:
    number = line["run"]
    if line["kind"] == "start":
        came_from = tuple(line["resumed_from"]) if line["resumed_from"] else None
        run = runs.setdefault(number, Run(number, line["world_size"], came_from))
        if run.resumed_from != came_from:
            raise ValueError(f"run {number}: ranks began at {run.resumed_from} and {came_from}")
        run.pids.append(line["pid"])
    elif line["kind"] == "step":
        run, count = runs[number], line["step"]
        step = run.steps.setdefault(count, Step(run, count, line["epoch"]))
        step.ids += line["ids"]
        step.num_ranks += 1
    else:
        runs[number].accuracy[line["epoch"]] = line["accuracy"]
