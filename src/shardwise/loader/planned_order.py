"""The order of a dataset by a plan, and its states: what loaders and samplers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.loader.checkpoint_form import for_checkpoint, from_checkpoint
from shardwise.loader.plan_options import fingerprint_of
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import DataOrder, LoaderState, Plan


class PlannedOrder:
    """The order of a dataset by a plan, and its states."""

    dataset: Any
    _plan: Plan

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process."""
        raise NotImplementedError

    @property
    def _order(self) -> DataOrder:
        # An order that is cut for global batches is another one once the ranks are known.
        return DataOrder(fingerprint_of(self.dataset), self.plan.sampler)

    def _take_up(self, state: Mapping[str, Any]) -> LoaderState:
        """Read a state, and go on in the order that it was taken in.

        Raises:
            StateError: it belongs to other data, another seed or another order.
        """
        state = from_checkpoint(state)
        plan = self.plan.in_order_of(state)
        loaded = DataOrder(fingerprint_of(self.dataset), plan.sampler).read(state)
        self._plan = plan
        return loaded

    @staticmethod
    def _to_dict(state: LoaderState) -> dict[str, Any]:
        """A state in the form that the caller saves."""
        return for_checkpoint(state.to_dict())


class RankedPlan(PlannedOrder):
    """A plan among the ranks of the process that uses it."""

    _ranks: CurrentRanks

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process.

        Raises:
            ValueError: there would be no batch for each of them.
        """
        self._plan = self._plan.divided(self.world_size).require_steps()
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
        """This process's rank.

        Raises:
            RankError: it can't be told yet, or is not the rank that was passed.
        """
        return self._ranks.certain().rank

    @property
    def world_size(self) -> int:
        """How many ranks share the data."""
        return self._ranks.now().world_size
