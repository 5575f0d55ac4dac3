"""When a rank reads each block of its data: a pure function of the plan and the shards' sizes.

So every process knows which block is used next, and which one last, without asking another.
Where in its shard a sample lies is taken from the counts alone, as if all samples of a shard had
one size: an error of it costs a read, and changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.plan import Plan

# Ids are computed for as many rows at a time.
_ROWS = 65_536
# The step after all that are planned.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BlockUses:
    """The steps at which blocks are read, sorted by block and step.

    Attributes:
        blocks: int64 or uint64 `[uses]`, the block of each use.
        steps: int64 `[uses]`, its step, counted from the start of the first epoch on.
    """

    blocks: NDArray[np.int64] | NDArray[np.uint64]
    steps: NDArray[np.int64]

    def next_steps(
        self, blocks: NDArray[np.int64] | NDArray[np.uint64], now: int, *, skip: int = 0
    ) -> NDArray[np.int64]:
        """For each block the first step from `now` on that reads it; `NEVER` if none does.

        `skip` leaves out that many steps from there on.
        """
        ends = np.searchsorted(self.blocks, blocks, side="right")
        begins = np.searchsorted(self.blocks, blocks, side="left")
        found = np.full(len(blocks), NEVER, np.int64)
        for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            at = begin + int(np.searchsorted(self.steps[begin:end], now)) + skip
            if at < end:
                found[i] = self.steps[at]
        return found

    def most_open(self, stop: int) -> int:
        """The most blocks in use at a time: read before a step below `stop`, and read again later.

        A cache with room for fewer reads some of them again.
        """
        used = self.steps < stop
        blocks, steps = self.blocks[used], self.steps[used]
        is_first = np.append(True, blocks[1:] != blocks[:-1]) if len(blocks) else np.zeros(0, bool)
        is_last = np.append(is_first[1:], True) if len(blocks) else is_first
        change = np.zeros(stop + 2, np.int64)
        np.add.at(change, steps[is_first], 1)
        np.add.at(change, steps[is_last] + 1, -1)
        return int(np.cumsum(change).max())


def block_uses(
    plan: Plan,
    blocks_of: Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]],
    *,
    epochs: Sequence[int],
    ranks: Sequence[int],
) -> BlockUses:
    """When some ranks read each block in some epochs.

    Args:
        plan: divides the epochs.
        blocks_of: returns the first and the last block of each sample.
        epochs: in order.
        ranks: for example those of one machine.
    """
    plans = [plan if e == plan.epoch else plan.resumed(0, epoch=e) for e in epochs]
    # A use is one number: pairs take eight times as long.
    most = max(1, sum(of_epoch.num_steps for of_epoch in plans))
    uses: list[NDArray[np.int64]] = []
    base = 0
    for epoch, of_epoch in zip(epochs, plans, strict=True):
        num_steps = max(1, _ROWS // plan.batch_size)
        for rank in ranks:
            for start in range(0, of_epoch.num_steps, num_steps):
                steps = range(start, min(start + num_steps, of_epoch.num_steps))
                rows = [ids for ids, _ in of_epoch.batches(epoch, steps, rank)]
                at = np.repeat(np.array(steps) + base, [len(ids) for ids in rows])
                firsts, lasts = blocks_of(np.concatenate(rows))
                spans = lasts != firsts
                blocks = np.concatenate([firsts, lasts[spans]])
                uses.append(np.unique(blocks * most + np.concatenate([at, at[spans]])))
        base += of_epoch.num_steps
    found = np.unique(np.concatenate(uses)) if uses else np.empty(0, np.int64)
    return BlockUses(*np.divmod(found, most))


def blocks_by_share(
    sizes: NDArray[np.int64],
    num_blocks: NDArray[np.int64],
    indices: NDArray[np.int64] | None = None,
) -> Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The `blocks_of` of shards of so many samples and blocks: each sample has an equal share.

    Blocks are numbered through all shards; `indices` are those of a subset.
    """
    ends, before = np.cumsum(sizes), np.cumsum(num_blocks) - num_blocks

    def blocks_of(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = ids if indices is None else indices[ids]
        shards = np.searchsorted(ends, ids, side="right")
        rows, size, count = ids - ends[shards] + sizes[shards], sizes[shards], num_blocks[shards]
        firsts = rows * count // size
        lasts = ((rows + 1) * count - 1) // size
        return before[shards] + firsts, before[shards] + np.maximum(firsts, lasts)

    return blocks_of
