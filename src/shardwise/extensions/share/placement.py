"""The node that holds each block: a pure function of the plan, computed for each block alone.

The node that reads a block, or of several the one that reads its middle sample, holds it from its
first read in an epoch up to that in the next one. What a disk has no room for goes to others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from shardwise.plan import Plan
from shardwise.plan.partition import ranks_of
from shardwise.plan.protocol import first_lane_of, lanes_of, positions_of

Ints = NDArray[np.int64]

# Larger global batches are cut without the lane order; see `shardwise.plan.partition`.
_MAX_FACTOR = 2**31


def middle_samples(sizes: Ints, num_blocks: Ints, indices: Ints | None) -> tuple[Ints, Ints, Ints]:
    """The shard of each block, its number in that, and the id of the sample in its middle.

    Assumes that all samples of a shard have one size. `indices` are those of a subset.
    """
    counts = np.where(sizes > 0, num_blocks, 0)
    shards = np.repeat(np.arange(len(sizes)), counts)
    numbers = np.arange(len(shards)) - (np.cumsum(counts) - counts)[shards]
    ids = (np.cumsum(sizes) - sizes)[shards]
    ids += (2 * numbers + 1) * sizes[shards] // (2 * counts[shards])
    if indices is not None:  # the next sample stands for one that the subset lacks
        order = np.argsort(indices, kind="stable")
        ids = order[np.minimum(np.searchsorted(indices[order], ids), len(order) - 1)]
    return shards, numbers, ids


def places_of(plan: Plan, epoch: int, ids: Ints) -> Ints:
    """The position of each of some ids in an epoch, int64 `[k]`; -1 where it has none."""
    ids, back = np.unique(ids, return_inverse=True)
    found, places = positions_of(plan.sampler, epoch, ids), np.full(len(ids), -1, np.int64)
    places[np.searchsorted(ids, plan.sampler.indices(epoch, found))] = found
    return places[back]


def holders(readers: Ints, following: Ints, rooms: Sequence[int]) -> Ints:
    """The node that holds each block, from the nodes that read it.

    `rooms` is the most blocks that each holds: others hold those of the last positions in the
    next epoch, `following`, in which -1 comes last.
    """
    held = readers.copy()
    order = np.argsort(following.view(np.uint64), kind="stable")
    by_node = order[np.argsort(held[order], kind="stable")]
    counts = np.bincount(held, minlength=len(rooms))
    at = np.empty(len(held), np.int64)  # among the blocks of its node
    at[by_node] = np.arange(len(held)) - np.repeat(np.cumsum(counts) - counts, counts)
    room = np.minimum(np.array(rooms, np.int64), len(held))  # a node may give any number
    spare = np.repeat(np.arange(len(room)), np.maximum(0, room - counts))
    moved = order[at[order] >= room[held[order]]][: len(spare)]
    held[moved] = spare[np.arange(len(moved)) * len(spare) // max(1, len(moved))]
    return held


def reading_ranks(plan: Plan, epoch: int, places: Ints) -> Ints:
    """The rank that reads each position, by its slot in the lane order of its global batch.

    It may be another one next to a border between ranks, and where batches are cut or dealt in
    another way: then a holder reads less of what it holds. See `shardwise.plan.partition`.
    """
    size, lanes = plan.global_batch_size, lanes_of(plan.sampler)
    start = plan.start if epoch == plan.epoch else 0
    slots, sizes = (places - start) % size, np.full(len(places), size)
    if lanes > 1 and max(size, lanes) <= _MAX_FACTOR:
        d = gcd(size, lanes)
        classes, x = np.divmod(np.arange(lanes), lanes // d)
        numbers = np.empty(lanes, np.int64)
        numbers[x * (size % lanes // d) % (lanes // d) * d + classes] = np.arange(lanes)
        lane = (places + first_lane_of(plan.sampler, epoch)) % lanes
        slots = np.minimum(numbers[lane] * size // lanes + slots // lanes, size - 1)
    elif plan.remainder == "uneven":
        left = (plan.num_samples - start) % size
        sizes[places >= plan.num_samples - left] = left
    return ranks_of(slots, sizes, plan.world_size)
