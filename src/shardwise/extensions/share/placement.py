"""Which node holds which block: a pure function of the plan, computed for each block alone.

A block is held by the node that reads it, which of several is the one that reads its middle sample,
from its first read in an epoch up to its first read in the next one. What a node's disk has no room
for goes to nodes that have some.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from shardwise.plan import Plan
from shardwise.plan.protocol import first_lane_of, lanes_of, positions_of

Ints = NDArray[np.int64]

# Larger global batches are cut without the lane order; see `shardwise.plan.lanes`.
_MAX_FACTOR = 2**31


def middle_samples(sizes: Ints, num_blocks: Ints, indices: Ints | None) -> tuple[Ints, Ints, Ints]:
    """For each block its shard, its number in that, and the id of the sample in its middle.

    As if all samples of a shard had one size. `indices` are those of a subset, whose next sample
    stands for one that it lacks.
    """
    counts = np.where(sizes > 0, num_blocks, 0)
    shards = np.repeat(np.arange(len(sizes)), counts)
    numbers = np.arange(len(shards)) - (np.cumsum(counts) - counts)[shards]
    ids = (np.cumsum(sizes) - sizes)[shards]
    ids += (2 * numbers + 1) * sizes[shards] // (2 * counts[shards])
    if indices is not None:
        order = np.argsort(indices, kind="stable")
        ids = order[np.minimum(np.searchsorted(indices[order], ids), len(order) - 1)]
    return shards, numbers, ids


def places_of(plan: Plan, epoch: int, ids: Ints) -> Ints:
    """The position of each of some ids in an epoch, int64 `[k]`; -1 where it has none."""
    ids, back = np.unique(ids, return_inverse=True)
    found, places = positions_of(plan.sampler, epoch, ids), np.full(len(ids), -1, np.int64)
    places[np.searchsorted(ids, plan.sampler.indices(epoch, found))] = found
    return places[back]


def holders(
    plan: Plan,
    epoch: int,
    places: Ints,
    following: Ints,
    *,
    ranks: Sequence[int],
    rooms: Sequence[int],
) -> Ints:
    """The node that holds each block from its read in an epoch on.

    Args:
        plan: of the epoch, or of what is left of it.
        epoch: the epoch.
        places: the positions of the blocks' middle samples.
        following: those in the next epoch; a full disk lacks what is read last then.
        ranks: for each rank the number of its node.
        rooms: for each node how many blocks its disk holds.
    """
    held = np.array(ranks, np.int64)[_reading_ranks(plan, epoch, places)]
    # Those without a position, which is -1, come last.
    order = np.argsort(following.view(np.uint64), kind="stable")
    by_node = order[np.argsort(held[order], kind="stable")]
    counts = np.bincount(held, minlength=len(rooms))
    at = np.empty(len(held), np.int64)  # among the blocks of its node
    at[by_node] = np.arange(len(held)) - np.repeat(np.cumsum(counts) - counts, counts)
    room = np.array(rooms, np.int64)
    spare = np.repeat(np.arange(len(room)), np.maximum(0, room - counts))
    moved = order[at[order] >= room[held[order]]][: len(spare)]
    held[moved] = spare[np.arange(len(moved)) * len(spare) // max(1, len(moved))]
    return held


def _reading_ranks(plan: Plan, epoch: int, places: Ints) -> Ints:
    """The rank that reads each position: that of its place in the lane order of its global batch.

    Next to a border between ranks, and where batches are cut or dealt in another way, it may be
    another one: then the holder reads less of what it holds. See `shardwise.plan.lanes`.
    """
    size, lanes = plan.global_batch_size, lanes_of(plan.sampler)
    start = plan.start if epoch == plan.epoch else 0
    slots = (places - start) % size
    if lanes > 1 and max(size, lanes) <= _MAX_FACTOR:
        d = gcd(size, lanes)
        of_class, extra = lanes // d, size % lanes // d
        classes, x = np.divmod(np.arange(lanes), of_class)
        numbers = np.empty(lanes, np.int64)
        numbers[x * extra % of_class * d + classes] = np.arange(lanes)
        lane = (places + first_lane_of(plan.sampler, epoch)) % lanes
        slots = np.minimum(numbers[lane] * size // lanes + slots // lanes, size - 1)
    found: Ints = slots * plan.world_size // size
    return found
