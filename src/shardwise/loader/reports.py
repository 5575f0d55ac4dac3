"""What a loader reports of itself: its repr, the stats of a run and the certificate of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from shardwise.base.errors import RankError
from shardwise.base.markup import table
from shardwise.engine.stats.counts import Counts
from shardwise.loader.batch_maker import BatchMaker
from shardwise.loader.passes import Passes
from shardwise.loader.planned_order import Divided
from shardwise.plan.protocol import sources_of
from shardwise.sources.samples import Samples, removed_of

if TYPE_CHECKING:
    from shardwise.loader.returned_types import Certificate, Stats


class Reports(Divided):
    """The methods of a loader that report what it does, and change nothing of it."""

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
        """What was handed out in the newest pass, compared with the plan: a proof, or what differs.

        Where torch.distributed is initialised and its ranks are the loader's, it is of all ranks,
        and all of them must call it, at the same step: it gathers 12 numbers of each. Else it is
        of this rank.

        Returns:
            JSON: `ok`, whether each sample came once; `count`, samples handed out; `word`, their
            keyed sum as 16 hex digits; `expected`, what it must be; `verdict`, in words; and more,
            see docs/certificate.md.

        Two different multisets of ids have the same word with a chance of N / 2**61.
        """
        found = self._passes.account.certificate(self._order.ranks, epoch=self.epoch)
        return cast("Certificate", found)

    def stats(self, *, since: Mapping[str, Any] | None = None, reset: bool = False) -> Stats:
        """Counts and seconds of the batches handed out so far, and the bottleneck.

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
        return cast("Stats", stats)
