"""Data that grew at their end: the epoch under way ends on the old samples, the next has all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StateError
from shardwise.plan.arguments import whole
from shardwise.plan.left_out import Excluded, resumed
from shardwise.plan.order import AnyPartition, Order
from shardwise.plan.plan import Plan
from shardwise.plan.sampler import sampler_from_spec
from shardwise.plan.state import LoaderState
from shardwise.sources.manifest import Manifest

_KINDS = ("sequential", "full", "window")
_MAX_EMPTY = 64  # shards at the end of the old ones
_OF_SIZE = ("num_samples", "shard_sizes", "lanes", "window")


class GrowingPlan(Plan):
    """The plan of the old samples up to the epoch `last`, and `grown` for those after it."""

    def __init__(self, grown: Plan, order: Order, state: LoaderState) -> None:
        self.__dict__.update(grown.__dict__)
        self.grown, self.last, self.fingerprint = grown, state.epoch, state.fingerprint
        self._compose(order, grown._base)

    def resumed(self, position: SupportsIndex, *, epoch: SupportsIndex | None = None) -> Plan:
        """The plan of what is left of an epoch, as of `Plan`."""
        epoch = self.epoch if epoch is None else whole("epoch", epoch, least=0)
        if epoch > self.last:
            return self.grown.resumed(position, epoch=epoch)
        return super().resumed(position, epoch=epoch)

    def of_epoch(self, epoch: int | None = None) -> Plan:
        """The plan that an epoch follows; for None, later ones."""
        return self.grown if epoch is None or epoch > self.last else self

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at some positions of an epoch, int64 `[k]`."""
        ids = self.grown.ids if epoch > self.last else super().ids
        return ids(epoch, positions)

    def _partition_of(self, epoch: int) -> AnyPartition:
        of_epoch = self.grown._partition_of if epoch > self.last else super()._partition_of
        return of_epoch(epoch)

    def _replace(
        self, *, order: Order | None = None, epoch: int | None = None, **changes: Any
    ) -> Plan:
        plan = super()._replace(order=order, epoch=epoch, **changes)
        assert isinstance(plan, GrowingPlan)
        changes.pop("start", None)
        plan.grown = self.grown._replace(**changes) if changes else self.grown
        return plan


def grow(dataset: Any, plan: Plan, state: LoaderState) -> tuple[Plan, LoaderState]:
    """Return the plan after a state of a dataset's first shards, and the state.

    Raises:
        StateError: these are other data, or another seed or order, or an order that can't grow.
    """
    order, spec, sizes = plan.order, plan.order.made.spec(), _sizes_before(dataset, state)
    made = sampler_from_spec(state.order, sizes) if state.order.get("sampler") in _KINDS else None
    of_size = {name: spec.get(name) for name in _OF_SIZE}
    is_same = {**state.order, **of_size} == {**spec, **of_size}
    if made is None or made.num_samples != state.num_samples or not is_same:
        raise StateError(
            f"grown='next_epoch': the state's order is {state.order!r:.200}, this loader's "
            f"{order.made!r:.200}: data grow in storage order, or by the state's seed and shuffle="
            "'full' or 'window'; for others, start without the state, or add the new data as a "
            "dataset by sw.mix(..., schedule=)"
        )
    now, own, count = (state.epoch, state.position), order.excluded, made.num_samples

    def first(each: Excluded | None) -> Excluded | None:
        return None if each is None else Excluded.of(each.ids[each.ids < count], count)

    own = own if own is not None and own.is_given else None
    old = resumed(first(own), state.excluded, now, count)
    plan = plan.excluding(replace(own, since=old.since) if own and old else old)
    if not state.position:
        return plan, state
    removed = first(order.removed)
    order = replace(order, made=made, num_ids=count, excluded=old, removed=removed)
    return GrowingPlan(plan, order, state), state


def _sizes_before(dataset: Any, state: LoaderState) -> NDArray[np.int64]:
    """Return the sizes of the shards that were there when a state was taken."""
    manifest = getattr(dataset, "manifest", None)
    # A subset has the manifest of all samples.
    if isinstance(manifest, Manifest) and manifest.fingerprint == dataset.fingerprint:
        for count in np.flatnonzero(manifest.ends == state.num_samples)[:_MAX_EMPTY].tolist():
            if manifest.first(count + 1).fingerprint == state.fingerprint:
                return manifest.sizes[: count + 1]
    raise StateError(
        f"grown='next_epoch': no first shards of this dataset have the state's {state.num_samples} "
        f"samples and fingerprint {state.fingerprint!r}: new shards must come after all old ones, "
        "which stay as they were; subsets, packs, mixtures, epoch_size= and data without shards "
        "can't grow: start without the state"
    )
