"""Questions to the plan of a loader: which samples a step has, its batch, and where samples come.

Answers are functions of the plan and the dataset: they move no position and count nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardwise.base.plugins import find
from shardwise.engine.request import BatchRequest
from shardwise.loader.reports import Reports
from shardwise.plan import Plan, checked_epoch
from shardwise.plan.arguments import whole
from shardwise.plan.protocol import positions_of


class Questions(Reports):
    """The methods of a loader that answer from its plan, of the past and of the future.

    Steps of an epoch count from 0, for the ranks and the batch size that the loader has now. In the
    epoch in which a state was loaded, the steps behind its position are those that the loader has.
    """

    def explain(self, step: int, rank: int | None = None, epoch: int | None = None) -> Any:
        """Which samples a step has: its ids, positions, keys, urls, byte ranges and sources.

        No sample is read, and it takes as long for any step.

        Args:
            step: from 0 on.
            rank: None for this one.
            epoch: past or future; None for the one that the loader stands in.

        Returns:
            A `Step`; `print` shows a row a sample.

        Raises:
            ValueError: there is no such step, rank or epoch.
        """
        plan, epoch, at, rank = self._at(step, rank, epoch)
        positions, valid = plan.positions(epoch, range(at, at + 1), rank)
        ids = plan.ids(epoch, positions)
        return find("questions", "explain")(
            self.dataset, epoch, step, rank, ids=ids, positions=positions, valid=valid
        )

    def batch_at(self, step: int, rank: int | None = None, epoch: int | None = None) -> Any:
        """The batch of a step, bit-equal to the one of a run, with its randomness.

        It is made in this thread, whatever makes the loader's own. See `explain` for the arguments.
        """
        plan, epoch, at, rank = self._at(step, rank, epoch)
        [(ids, valid)] = plan.batches(epoch, range(at, at + 1), rank)
        valid_rows = valid if plan.remainder == "pad" else None
        return self._maker.make(BatchRequest(epoch, at, ids, valid_rows))

    def places_of(
        self, key_or_id: str | int, epochs: Iterable[int] | None = None
    ) -> list[tuple[int, int, int, int]]:
        """Where a sample comes: (epoch, step, rank, row) of each time, rows of padding apart.

        An order with an inverse is asked for it (storage order and shuffles); others are walked
        through, 0.02 to 0.4 us a position. Keys are looked up in a column that is made once.

        Args:
            key_or_id: a key, for all samples that have it; or a sample id.
            epochs: past or future ones; None for the one that the loader stands in.

        Raises:
            ValueError: there is no such sample.
        """
        if isinstance(key_or_id, str):
            ids = find("questions", "keys")([key_or_id], self.dataset)
        else:
            ids = np.array([whole("id", key_or_id, least=0, most=len(self.dataset) - 1)])
        found = []
        for epoch in [self.epoch] if epochs is None else map(checked_epoch, epochs):
            plan, first, rest = self._cut(epoch)
            for position in positions_of(plan.sampler, epoch, ids).tolist():
                part, before = (rest, first) if position >= rest.start else (plan, 0)
                place = _place(part, epoch, position)
                if place is not None:
                    found.append((epoch, before + place[0], *place[1:]))
        return found

    def _cut(self, epoch: int) -> tuple[Plan, int, Plan]:
        """An epoch from its beginning, and its first step from where a state stood, and that on."""
        plan = self.plan.resumed(0, epoch=epoch)
        start = self._passes.position.cut_of(epoch)
        first = bisect_left(range(plan.num_steps + 1), start, key=plan.position_after)
        return plan, first, plan.resumed(start)

    def _at(self, step: int, rank: int | None, epoch: int | None) -> tuple[Plan, int, int, int]:
        """The plan, epoch, step in it, and rank that are meant."""
        epoch = self.epoch if epoch is None else checked_epoch(epoch)
        rank = self.rank if rank is None else rank
        plan, first, rest = self._cut(epoch)
        most = first + rest.num_steps - 1
        if not 0 <= whole("step", step) <= most:
            raise ValueError(f"step={step}: epoch {epoch} has the steps 0 to {most}")
        return (rest, epoch, step - first, rank) if step >= first else (plan, epoch, step, rank)


def _place(plan: Plan, epoch: int, position: int) -> tuple[int, int, int] | None:
    """Step, rank and row of a position; None where no rank gets it."""
    steps = range(plan.num_steps + 1)
    step = bisect_right(steps, position, key=plan.position_after) - 1
    if 0 <= step < plan.num_steps:
        for rank in range(plan.world_size):
            positions, valid = plan.positions(epoch, range(step, step + 1), rank)
            row = np.flatnonzero((positions == position) & valid)
            if len(row):
                return step, rank, int(row[0])
    return None
