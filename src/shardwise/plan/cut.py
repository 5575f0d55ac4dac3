"""The partition of an epoch: by the plan, by its sampler's batches, without what is left out."""

from __future__ import annotations

import numpy as np

from shardwise.base.abilities import having
from shardwise.plan.batch_partition import BatchPartition
from shardwise.plan.left_out import RestPartition
from shardwise.plan.order import Order
from shardwise.plan.partition import Partition
from shardwise.plan.protocol import BatchEnds, ForGlobalBatch, batch_ends

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
