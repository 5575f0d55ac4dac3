"""A dataset that is divided among ranks by a plan, and the states of that.

`torch.distributed.checkpoint` (DCP) saves the leaves of a dict, and loads those that the dict of a
fresh object has, which an order may not have yet: DCP gets a state as one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.base.arguments import check_choice
from shardwise.base.errors import RankError, StateError
from shardwise.base.framework_guards import active_guards
from shardwise.base.plugins import find
from shardwise.base.process_group import shared_name
from shardwise.loader.plan_options import fingerprint_of
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import DataOrder, LoaderState, Plan
from shardwise.plan.arguments import digest_of
from shardwise.plan.left_out import resumed

_LEAF = "json"


def for_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state, or where DCP requests it, one leaf of it with epoch and position."""
    if not any(guard.saves_leaves() for guard in active_guards()):
        return state
    return {"epoch": state["epoch"], "position": state["position"], _LEAF: json.dumps(state)}


def from_checkpoint(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state in what DCP loaded; any other state as it is.

    Raises:
        StateError: it is not JSON.
    """
    text = state.get(_LEAF) if isinstance(state, Mapping) else None
    if not isinstance(text, str):
        return state
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        raise StateError(f"the state's {_LEAF!r} is no JSON: {error}") from None


@dataclass(frozen=True, eq=False)
class PlannedOrder:
    """The common part of loaders and samplers: they own a plan, and a position in it."""

    dataset: Any
    ranks: CurrentRanks

    @property
    def rank(self) -> int:
        """This process's rank.

        Raises:
            RankError: it is not known yet, or is not the rank that was passed.
        """
        return self.ranks.certain().rank

    @property
    def world_size(self) -> int:
        return self.ranks.now().world_size

    def regrouped(self, rank: int | None, world_size: int | None, *, group: Any) -> PlannedOrder:
        """Return this for ranks that were passed or are found now; see `DataLoader.regroup`."""
        ranks = CurrentRanks(rank, world_size, group=group)
        if ranks.certain().source == "default" and self.world_size > 1:
            raise RankError(
                f"regroup() found no process group and no launcher, and this is one of "
                f"{self.world_size} ranks: call torch.distributed.init_process_group first, or "
                "pass rank= and world_size="
            )
        return replace(self, ranks=ranks)

    def divide(self, plan: Plan) -> Plan:
        """Return a plan as it is for the ranks of this process.

        Raises:
            ValueError: the plan does not have a batch for each rank.
        """
        return plan.divided(self.world_size).require_steps()

    def state(self, plan: Plan, *position: int, **more: Any) -> dict[str, Any]:
        """Return a state of a plan in the form that the caller saves; see `DataOrder.state`."""
        order = self._order_of(plan.of_epoch(position[0]))
        return for_checkpoint(order.state(*position, **more).to_dict())

    def state_after(
        self, rest: Plan, epoch: int, num_batches: int, *, run: str = ""
    ) -> dict[str, Any]:
        """Return the state after some batches of the rest of an epoch, in that form."""
        state = self._order_of(rest).state_after(rest, epoch, num_batches, run=run)
        return for_checkpoint(state.to_dict())

    def take_up(
        self, plan: Plan, state: Mapping[str, Any], grown: str | None = None
    ) -> tuple[Plan, LoaderState]:
        """Read a state, and return the plan in the order that it was taken in, too.

        Raises:
            StateError: it belongs to other data, another seed or another order.
        """
        check_choice("grown", grown, (None, "next_epoch"))
        state, may_grow = from_checkpoint(state), grown or plan.fingerprint
        plan = plan.of_epoch().in_order_of(state)
        if may_grow:
            loaded = LoaderState.from_dict(state)
            if loaded.fingerprint != fingerprint_of(self.dataset):
                return find("plans", "grow")(self.dataset, plan, loaded)  # type: ignore[no-any-return]
        loaded, order = self._order_of(plan).read(state), plan.order
        now, spec = (loaded.epoch, loaded.position), loaded.excluded
        if spec is not None and state["num_samples"] != loaded.num_samples:
            spec = {**spec, "since": now}  # epochs had another length
        return plan.excluding(resumed(order.excluded, spec, now, order.num_ids)), loaded

    def require_agreement(self, plan: Plan, epoch: int, position: int) -> None:
        """Refuse to start there while another rank of the process group leaves out other samples.

        Raises:
            RankError: it does.
        """
        if not self.ranks.are_of_group():
            return
        plan = plan.of_epoch(epoch)
        own, removed = str(plan.order.excluded or "no samples"), plan.order.removed
        own += f" and misses {removed}" if removed else ""
        key = f"shardwise/exclude/{digest_of(plan.sampler.spec())}/{epoch}/{position}"
        others = shared_name(key, own, is_new=True)
        if others not in (None, own):
            raise RankError(
                f"rank {self.rank} leaves out {own}, and another rank leaves out {others}: give "
                "exclude= the same list on every rank, which opens the data after a redaction"
            )

    def _order_of(self, plan: Plan) -> DataOrder:
        return DataOrder(fingerprint_of(self.dataset, plan), plan.sampler, plan.order.excluded)


class Divided:
    """The public attributes of what divides a dataset among ranks by a plan."""

    _order: PlannedOrder
    _plan: Plan

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process.

        Raises:
            ValueError: the plan does not have a batch for each rank.
        """
        self._plan = self._order.divide(self._plan)
        return self._plan

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator goes through."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches in an epoch on this rank: the same on every rank, and after a resume.

        Under a budget of `sw.buckets`, those of its epoch.
        """
        return self.plan.resumed(0, epoch=self.epoch).num_steps

    @property
    def rank(self) -> int:
        """This process's rank; a `RankError` if it is not known, or is not the one passed."""
        return self._order.rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share the data."""
        return self._order.world_size
