"""What a loader answers: its repr and stats, and from its plan steps, batches and positions.

Answers are functions of the plan and the dataset: they move no position and count nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Generic, cast

import numpy as np

from shardwise.base.errors import RankError
from shardwise.base.markup import table
from shardwise.base.plugins import find
from shardwise.engine.request import BatchRequest
from shardwise.engine.stats.counts import Counts
from shardwise.loader.batch_maker import BatchMaker
from shardwise.loader.passes import Passes
from shardwise.loader.planned_order import Divided
from shardwise.loader.returned_types import B, Certificate, Stats
from shardwise.plan import Plan, checked_epoch
from shardwise.plan.arguments import whole
from shardwise.plan.protocol import positions_of, sources_of
from shardwise.sources.samples import Samples, removed_of


class Questions(Divided, Generic[B]):
    """The methods of a loader that report what it does, and answer from its plan.

    Steps of an epoch count from 0, for the ranks and the batch size that the loader has now; after
    the position of a loaded state they are those that the loader has from there on.
    """

    dataset: Samples
    _maker: BatchMaker
    _counts: Counts
    _passes: Passes

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts())
        return f"DataLoader({self.dataset!r}, {facts})"

    def _facts(self) -> list[tuple[str, object]]:
        """Names and values of its repr, of the ranks as they are now; changes nothing."""
        try:
            now = self._order.ranks.now()
        except RankError as error:
            return [("rank", str(error))]
        plan = self._plan.divided(now.world_size).require_steps().resumed(0, epoch=self.epoch)
        names = ("batch_size", "world_size", "remainder", "num_steps", "num_dropped", "sampler")
        planned = [(name, getattr(plan, name)) for name in names]
        made = ("executor", str(self._maker.concurrency))
        return [("rank", now.rank), *planned, made, ("epoch", self.epoch)]

    def _repr_html_(self) -> str:
        return table("DataLoader", [("dataset", self.dataset), *self._facts()])

    def certificate(self) -> Certificate:
        """Compare the samples returned in the newest pass with the plan: a proof, or what differs.

        Where torch.distributed is initialised and its ranks are the loader's, it is of all ranks,
        and all of them must call it, at the same step: it gathers 12 numbers of each. Else it is
        of this rank.

        Returns:
            JSON: `ok`, whether each sample came once; `count`, samples returned; `word`, their
            keyed sum as 16 hex digits; `expected`, what it must be; `verdict`, in words; and more,
            see docs/certificate.md.

        Two different multisets of ids have the same word with a chance of N / 2**61.
        """
        found = self._passes.account.certificate(self._order.ranks, epoch=self.epoch)
        return cast(Certificate, found)

    def stats(self, *, since: Mapping[str, Any] | None = None, reset: bool = False) -> Stats:
        """Counts and seconds of the batches returned so far, and the bottleneck.

        Args:
            since: earlier stats of this loader: count what came after them, also across a reset;
                {} counts everything since the loader was made.
            reset: count from zero after this, to see one part of a run.

        Returns:
            JSON: `samples` and `batches`; `seconds` by stage; `rate`, samples a second; `bound_by`
            and `verdict`, what limits the loader, as a word and as a line; and more.
            docs/performance.md has all keys.

        Raises:
            ValueError: `since` is of another loader.
        """
        stats = self._maker.stats(self._counts, since)
        stats["removed"] = len(removed_of(self.dataset))
        sources = sources_of(self._plan.sampler, *self._passes.position.after())
        if sources is not None:
            stats["sources"] = sources
        if reset:
            self._counts.clear()
        return cast(Stats, stats)

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
