"""The proof that a plan reads each sample once: the plan is run and its samples are counted.

Every rank and step is asked what it reads, as a loader asks it, and each sample id is ticked off
in a table of one byte a sample. Nothing is derived from the formulas of the plan: where they are
wrong, the counts tell. Imports numpy and the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.plan import Plan

__all__ = ["Coverage", "prove"]

# Sample ids that are looked up at once.
BLOCK = 1 << 18


@dataclass(frozen=True)
class Coverage:
    """What one epoch of a plan reads, as counted.

    Attributes:
        num_ids: samples that the data holds.
        num_read: reads over all ranks and steps, padding not among them.
        num_distinct: samples that were read at least once.
        num_padded: reads that are marked as padding.
        num_short_batches: batches with less than `batch_size` samples.
        num_foreign: reads of ids that are none.
        rank_samples: int64 `[ranks]`, reads a rank, padding not among them.
        rank_padded: int64 `[ranks]`, padding a rank.
        reads: int64 `[ranks, groups]`, reads by rank and group of shards.
        group_sizes: int64 `[groups]`, samples a group holds.
    """

    num_ids: int
    num_read: int
    num_distinct: int
    num_padded: int
    num_short_batches: int
    num_foreign: int
    rank_samples: NDArray[np.int64]
    rank_padded: NDArray[np.int64]
    reads: NDArray[np.int64]
    group_sizes: NDArray[np.int64]

    @property
    def num_repeats(self) -> int:
        """Reads of a sample that was read before."""
        return self.num_read - self.num_distinct

    @property
    def num_never(self) -> int:
        """Samples that no rank reads."""
        return self.num_ids - self.num_distinct


def prove(
    plan: Plan,
    *,
    epoch: int,
    group_ends: NDArray[np.int64],
    report: Callable[[float], None],
) -> Coverage:
    """Run one epoch of a plan over all ranks and steps, and count.

    Args:
        plan: the plan.
        epoch: which epoch.
        group_ends: int64 `[groups]`, rising: the sample id after the last one of each group of
            shards; the last is the number of samples of the data.
        report: is told how many batches are done.
    """
    num_ids = int(group_ends[-1])
    seen = np.zeros(num_ids, dtype=np.bool_)
    reads = np.zeros((plan.world_size, len(group_ends)), dtype=np.int64)
    rank_padded = np.zeros(plan.world_size, dtype=np.int64)
    num_short = num_foreign = 0
    done = 0
    steps_at_once = max(1, BLOCK // plan.batch_size)
    for rank in range(plan.world_size):
        for first in range(0, plan.num_steps, steps_at_once):
            steps = range(first, min(first + steps_at_once, plan.num_steps))
            # Both of a step together: the plan keeps one block of steps.
            batches = [
                (plan.indices(epoch, step, rank), plan.valid(epoch, step, rank)) for step in steps
            ]
            num_short += sum(len(ids) < plan.batch_size for ids, _ in batches)
            ids = np.concatenate([ids for ids, _ in batches])
            valid = np.concatenate([valid for _, valid in batches])
            rank_padded[rank] += len(valid) - int(np.count_nonzero(valid))
            ids = ids[valid]
            known = (ids >= 0) & (ids < num_ids)
            num_foreign += len(ids) - int(np.count_nonzero(known))
            ids = ids[known]
            seen[ids] = True
            group = np.searchsorted(group_ends, ids, side="right")
            reads[rank] += np.bincount(group, minlength=len(group_ends))
            done += len(steps)
            report(done)
    return Coverage(
        num_ids=num_ids,
        num_read=int(reads.sum()),
        num_distinct=int(np.count_nonzero(seen)),
        num_padded=int(rank_padded.sum()),
        num_short_batches=num_short,
        num_foreign=num_foreign,
        rank_samples=reads.sum(axis=1),
        rank_padded=rank_padded,
        reads=reads,
        group_sizes=np.diff(group_ends, prepend=0),
    )
