"""Questions to the plan of a loader: which samples a step has, its batch, and where samples come.

Answers are functions of the plan and the dataset: they move no position and count nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Generic

import numpy as np

from shardwise.base.plugins import find
from shardwise.engine.request import BatchRequest
from shardwise.loader.reports import Reports
from shardwise.loader.returned_types import B
from shardwise.plan import Plan, checked_epoch
from shardwise.plan.arguments import whole
from shardwise.plan.protocol import positions_of


class Questions(Reports, Generic[B]):
    """The methods of a loader that answer from its plan, of the past and of the future.

    Steps of an epoch count from 0, for the ranks and the batch size that the loader has now; after
    the position of a loaded state they are those that the loader has from there on.
    """

    def explain(self, step: int, rank: int | None = None, epoch: int | None = None) -> Any:
        """The samples of a step: `ids`, `positions`, `keys`, `urls`, `byte_ranges`, `sources`.

        No sample is read, and every step takes as long. `rank` and `epoch`, of the past or of the
        future, are by default the loader's own.

        Raises:
            ValueError: the step, rank or epoch does not exist.
        """
        plan, epoch, at, rank = self._locate(step, rank, epoch)
        positions, valid = plan.positions(epoch, range(at, at + 1), rank)
        rows = {"ids": plan.ids(epoch, positions), "positions": positions, "valid": valid}
        return find("questions", "explain")(self.dataset, epoch, step, rank, **rows)

    def batch_at(self, step: int, rank: int | None = None, epoch: int | None = None) -> B:
        """The batch of a step, bit-equal to the one of a run; the arguments are `explain`'s.

        It is made in this thread, whatever makes the loader's own.
        """
        plan, epoch, at, rank = self._locate(step, rank, epoch)
        [(ids, valid)] = plan.batches(epoch, range(at, at + 1), rank)
        return self._maker.make(  # type: ignore[no-any-return]
            BatchRequest(epoch, at, ids, valid if plan.remainder == "pad" else None)
        )

    def places_of(
        self, key_or_id: str | int, epochs: Iterable[int] | None = None
    ) -> list[tuple[int, int, int, int]]:
        """Find a sample in epochs: `(epoch, step, rank, row)` of each time, without padding.

        Storage order and shuffles are inverted; other orders are walked through, 0.02 to 0.4 us a
        position. Keys are looked up in a column of them, which is made once. `epochs` is by default
        the one that the loader stands in.

        Raises:
            ValueError: the sample does not exist.
        """
        if isinstance(key_or_id, str):
            ids = find("questions", "keys")([key_or_id], self.dataset)
        else:
            ids = np.array([whole("id", key_or_id, least=0, most=len(self.dataset) - 1)])
        found = []
        for epoch in [self.epoch] if epochs is None else map(checked_epoch, epochs):
            plan, first, rest = self._cut_epoch(epoch)
            known = ids[ids < plan.order.num_ids]
            for position in positions_of(plan.sampler, epoch, known).tolist():
                part, before = (rest, first) if position >= rest.start else (plan, 0)
                found += [
                    (epoch, before + step, rank, row)
                    for step, rank, row in _place(part, epoch, position)
                ]
        return found

    def _cut_epoch(self, epoch: int) -> tuple[Plan, int, Plan]:
        """A whole epoch, its first step after a loaded state, and the epoch from there on."""
        plan, start = self.plan.resumed(0, epoch=epoch), self._passes.position.cut_of(epoch)
        first = bisect_left(range(plan.num_steps + 1), start, key=plan.position_after)
        return plan, first, plan.resumed(start)

    def _locate(self, step: int, rank: int | None, epoch: int | None) -> tuple[Plan, int, int, int]:
        """The plan, epoch, step in it, and rank that are meant."""
        epoch = self.epoch if epoch is None else checked_epoch(epoch)
        plan, first, rest = self._cut_epoch(epoch)
        most = first + rest.num_steps - 1
        if not 0 <= whole("step", step) <= most:
            raise ValueError(f"step={step}: epoch {epoch} has the steps 0 to {most}")
        rank = self.rank if rank is None else rank
        return (rest, epoch, step - first, rank) if step >= first else (plan, epoch, step, rank)


def _place(plan: Plan, epoch: int, position: int) -> list[tuple[int, int, int]]:
    """Step, rank and row of a position; nothing where no rank gets it."""
    step = bisect_right(range(plan.num_steps + 1), position, key=plan.position_after) - 1
    if not 0 <= step < plan.num_steps:
        return []
    blocks = [plan.positions(epoch, range(step, step + 1), rank) for rank in range(plan.world_size)]
    return [
        (step, rank, row)
        for rank, (positions, valid) in enumerate(blocks)
        for row in np.flatnonzero((positions == position) & valid).tolist()
    ]
