"""When blocks are read: against a walk through the plan, and the blocks that are open at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.extensions.remote.cache.uses import NEVER, block_uses, blocks_by_share
from shardwise.plan import Plan

SIZES = np.array([30, 0, 7, 64])
NUM_BLOCKS = np.array([3, 1, 10, 2])


def walked(plan, epochs, ranks):
    """By block the steps that read it, one sample after the other."""
    found = {}
    ends, before = np.cumsum(SIZES), np.cumsum(NUM_BLOCKS) - NUM_BLOCKS
    base = 0
    for epoch in epochs:
        for step in range(plan.num_steps):
            for rank in ranks:
                for sample in plan.indices(epoch, step, rank).tolist():
                    shard = int(np.searchsorted(ends, sample, side="right"))
                    row, size = sample - int(ends[shard] - SIZES[shard]), int(SIZES[shard])
                    count = int(NUM_BLOCKS[shard])
                    first = row * count // size
                    last = max(first, -(-(row + 1) * count // size) - 1)
                    for block in {first, last}:
                        found.setdefault(int(before[shard]) + block, set()).add(base + step)
        base += plan.num_steps
    return found


@pytest.mark.parametrize("shuffle", [False, "window", "full"])
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 60), st.integers(0, 2))
def test_next_uses_are_those_of_a_walk_through_the_plan(shuffle, world_size, size, now, skip):
    plan = Plan(
        int(SIZES.sum()),
        batch_size=size,
        world_size=world_size,
        shuffle=shuffle,
        remainder="uneven",
        **({"shard_sizes": SIZES.tolist()} if shuffle == "window" else {}),
    )
    ranks = range(0, world_size, 2)
    uses = block_uses(plan, blocks_by_share(SIZES, NUM_BLOCKS), epochs=(0, 1), ranks=ranks)
    expected = walked(plan, (0, 1), ranks)
    blocks = np.arange(int(NUM_BLOCKS.sum()))
    found = uses.next_steps(blocks, now, skip=skip).tolist()
    for block, step in zip(blocks.tolist(), found, strict=True):
        later = [each for each in sorted(expected.get(block, ())) if each >= now][skip:]
        assert step == (later[0] if later else NEVER)


def test_a_sequence_has_few_blocks_open_and_a_full_shuffle_all():
    sizes, num_blocks = np.full(8, 640), np.full(8, 10)
    share = blocks_by_share(sizes, num_blocks)
    options = {"batch_size": 32, "world_size": 1, "remainder": "uneven"}
    opened = {}
    for shuffle in (False, "full"):
        plan = Plan(int(sizes.sum()), shuffle=shuffle, **options)
        uses = block_uses(plan, share, epochs=(0, 1), ranks=(0,))
        opened[shuffle] = uses.most_open(plan.num_steps)
    assert opened[False] <= 2
    assert opened["full"] >= 75
