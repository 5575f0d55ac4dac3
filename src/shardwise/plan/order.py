"""The order of a plan, and the partition of an epoch of it.

A sampler, made for the global batches that it is cut into, without the samples that are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.plan.batch_partition import BatchPartition
from shardwise.plan.left_out import Excluded, RestPartition
from shardwise.plan.partition import Partition
from shardwise.plan.protocol import (
    BatchBy,
    BatchEnds,
    ForGlobalBatch,
    ReadsOldOrders,
    Sampler,
    batch_ends,
    for_global_batch,
    global_batch_of,
)
from shardwise.plan.sampler import is_in_order


@dataclass(frozen=True, eq=False)
class Order:
    """The sample ids of each epoch, by position.

    `sampler` is `made` for `global_batch`; one of a state is pinned to that. Ids of a user's are
    checked. Samples that are `excluded` on purpose are left out, and those that the data has no
    more, `removed`.
    """

    made: Sampler
    num_ids: int
    is_users: bool = False
    global_batch: int = 1
    is_pinned: bool = False
    excluded: Excluded | None = None
    removed: Excluded | None = None
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", for_global_batch(self.made, self.global_batch))

    def cut_by(self, by: BatchBy, *, rows: int, seed: int) -> Order:
        """Return this order in batches by a column, of so many rows over all ranks."""
        # Without a shuffle the batches keep the order of their samples.
        own_seed = None if is_in_order(self.made) else seed
        made = by.over(self.made, self.num_ids, rows=rows, seed=own_seed)
        return replace(self, made=made)

    def for_global_batch(self, size: int) -> Order:
        """Return the order for global batches of this size; that of a state stays what it is."""
        if self.is_pinned or size == self.global_batch:
            return self
        return replace(self, global_batch=size)

    def of_state(self, spec: Any, *, size: int) -> Order:
        """Return the order that a state describes by `spec`, for a plan of this global batch.

        It is this order for samplers that need not know the global batch.
        """
        states = global_batch_of(spec)
        made = self.made
        if states is None or having(made, ForGlobalBatch) is None:
            return self
        old = having(made, ReadsOldOrders)
        made = made if old is None else old.in_order_of(spec)
        if made is self.made and states == self.global_batch:
            return self
        return replace(self, made=made, global_batch=states, is_pinned=states != size)

    def left_out(self, epoch: int) -> NDArray[np.int64]:
        """Return the positions of an epoch that are left out, int64 `[k]`, ascending."""
        found = [
            each.positions(self.sampler, epoch) for each in (self.excluded, self.removed) if each
        ]
        if len(found) == 1:
            return found[0]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))


AnyPartition = Partition | BatchPartition | RestPartition


def cut(order: Order, base: Partition, epoch: int) -> AnyPartition:
    """Return the partition of an epoch of an order; `base` knows batches, ranks and the start."""
    own, holes = batch_ends(order.sampler, epoch), order.left_out(epoch)
    if not len(holes):
        return base if own is None else BatchPartition.of(base, own)
    if own is None and having(order.sampler, ForGlobalBatch) is not None:
        # An order made for global batches keeps each of them together.
        size, count = order.global_batch, base.num_samples
        own = BatchEnds(np.append(np.arange(size, count, size), count), size)
    return RestPartition(holes, base, own)


def no_batch_reason(order: Order, base: Partition, has_even_steps: bool) -> str:
    """Why an epoch has no batch for each rank, and what to change."""
    count = base.num_samples
    if count == 0:
        return "the dataset has no samples"
    for out, what in ((order.excluded, "exclude= leaves out"), (order.removed, "removed were")):
        if out is not None and len(out.ids):
            return (
                f"no batch to give: {what} {out} of {count}, and the rest does not fill a global "
                f"batch of {base.global_batch_size}"
            )
    if not has_even_steps:
        return (
            f"no batch to give: the {count} samples make too few batches for "
            f"world_size={base.world_size}, and remainder='drop' drops them all; use a smaller "
            "budget or batch_size, or remainder='pad' or 'uneven'"
        )
    return (
        f"no batch to give: {count} samples do not fill one global batch of {base.size_text}, and "
        "remainder='drop' drops them all; use a smaller batch_size, or remainder='pad' or 'uneven'"
    )
