"""Replicas that are killed and that join, while training continues: no restart, no sample twice.

A coordinator names the members before each step, as torchft's lighthouse does. A step counts only
if every member has it; otherwise the members load the last committed state. A member that takes
another rank calls `loader.regroup`, whose threads, caches and open files stay.

    python examples/elastic_replicas.py --changes 6

Each committed global batch is compared with that of one process. Lines of coverage are written to
a directory, of which `shardwise certify` then says whether each sample came once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

import shardwise as sw

GLOBAL_BATCH, MOST_MEMBERS = 24, 7


def make_loader(
    num_samples: int, rank: int, world_size: int, coverage: str | None
) -> sw.DataLoader:
    return sw.DataLoader(
        sw.wrap(np.arange(num_samples)),
        global_batch_size=GLOBAL_BATCH,  # 24 over 5 ranks are 5, 5, 5, 5 and 4
        shuffle=True,
        remainder="uneven",
        rank=rank,
        world_size=world_size,
        coverage=coverage,
        num_workers=0,
        output="numpy",
    )


def run_replica(requests: Connection, num_samples: int, coverage: str) -> None:
    """Serve a coordinator: take a place in the world, or make a step."""
    loader: sw.DataLoader | None = None
    batches: Any = None
    while True:
        kind, *arguments = requests.recv()
        if kind == "stop":
            return
        if kind == "join":
            rank, world_size, state = arguments
            if loader is None:
                loader = make_loader(num_samples, rank, world_size, coverage)
            if state is not None and loader.state_dict() != state:
                loader.load_state_dict(state)  # an aborted step is taken back
            loader.regroup(rank, world_size)
            batches = iter(loader)
            requests.send("joined")
        else:
            assert loader is not None
            batch = next(batches, None)
            # A model would train here, and average its gradients with the other members.
            ids = None if batch is None else batch["__index__"].tolist()
            requests.send((ids, loader.state_dict()))


@dataclass
class Member:
    """A replica and the coordinator's end of its pipe."""

    process: BaseProcess
    pipe: Connection

    def ask(self, *request: Any) -> bool:
        try:
            self.pipe.send(request)
        except OSError:
            return False
        return True

    def answer(self) -> Any:
        """Return its answer; None if it died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class Coordinator:
    """Forms a world of the members that live, and commits the steps that all of them made."""

    def __init__(self, num_samples: int, coverage: str, seed: int) -> None:
        self.num_samples, self.coverage = num_samples, coverage
        self.random = random.Random(seed)
        self.members: list[Member] = []
        self.state: dict[str, Any] | None = None
        self.committed: list[list[int]] = []
        self.worlds: list[int] = []
        self.num_kills = self.num_joins = self.num_aborted = 0

    def start_member(self) -> None:
        context = multiprocessing.get_context("fork")
        ours, its = context.Pipe()
        arguments = (its, self.num_samples, self.coverage)
        process = context.Process(target=run_replica, args=arguments, daemon=True)
        process.start()
        its.close()
        self.members.append(Member(process, ours))

    def change(self) -> None:
        """Kill a member, now or in the middle of the next step; or start one."""
        if len(self.members) < 2 or (
            len(self.members) < MOST_MEMBERS and self.random.random() < 0.5
        ):
            self.start_member()
            self.num_joins += 1
            self.form_world()
            return
        victim = self.random.choice(self.members)
        if self.random.random() < 0.5:
            os.kill(victim.process.pid or 0, signal.SIGKILL)
            victim.process.join()
            self.step()
        else:
            self.step(victim)
        self.num_kills += 1

    def form_world(self) -> None:
        while True:
            for rank, member in enumerate(self.members):
                member.ask("join", rank, len(self.members), self.state)
            if self.drop_dead([member.answer() for member in self.members]):
                return

    def drop_dead(self, answers: list[Any]) -> bool:
        """Remove the members that did not answer; return whether all did."""
        dead = [
            member for member, answer in zip(self.members, answers, strict=True) if answer is None
        ]
        for member in dead:
            member.end()
            self.members.remove(member)
        return not dead

    def step(self, victim: Member | None = None) -> bool:
        """Make a step; return whether batches are left."""
        for member in self.members:
            member.ask("step")
        if victim is not None:
            os.kill(victim.process.pid or 0, signal.SIGKILL)
        answers = [member.answer() for member in self.members]
        if not self.drop_dead(answers):
            self.num_aborted += 1
            self.form_world()
            return True
        assert all(state == answers[0][1] for _, state in answers), "states differ"
        if answers[0][0] is None:
            return False
        self.committed.append(sorted(i for ids, _ in answers for i in ids))
        self.worlds.append(len(answers))
        self.state = answers[0][1]
        return True

    def run(self, num_changes: int) -> None:
        for _ in range(4):
            self.start_member()
        self.form_world()
        # Between two changes there are steps; what is left of the epoch follows the last one.
        most = max(0, self.num_samples // GLOBAL_BATCH // (num_changes + 1) - 1)
        for _ in range(num_changes):
            for _ in range(self.random.randint(0, most)):
                self.step()
            self.change()
        while self.step():
            pass
        for member in self.members:
            member.ask("stop")
            member.process.join()
            member.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1207)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", default="")
    options = parser.parse_args()
    coverage = options.coverage or tempfile.mkdtemp(prefix="coverage-")

    with make_loader(options.samples, 0, 1, None) as alone:
        expected = [sorted(batch["__index__"].tolist()) for batch in alone]
    coordinator = Coordinator(options.samples, coverage, options.seed)
    coordinator.run(options.changes)
    assert coordinator.committed == expected, "a global batch is not that of one process"
    report = {
        "kills": coordinator.num_kills,
        "joins": coordinator.num_joins,
        "aborted": coordinator.num_aborted,
        "worlds": sorted(set(coordinator.worlds)),
        "batches": len(expected),
        "samples": sum(map(len, expected)),
        "coverage": coverage,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
