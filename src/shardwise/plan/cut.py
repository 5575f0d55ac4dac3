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
        # What the order is made for global batches stays together in one.
        size, count = order.global_batch, base.num_samples
        own = BatchEnds(np.append(np.arange(size, count, size), count), size)
    return RestPartition(holes, base, own)
