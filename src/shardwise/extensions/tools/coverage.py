"""The proof that a plan reads each sample once: the plan is run and its samples are counted.

Every rank and step is asked for its ids, as a loader asks, and each id is ticked off in a table of
one byte a sample. Nothing is derived from the plan's formulas, so an error in them shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cli.output import plural
from shardwise.plan import Plan
from shardwise.plan.protocol import sources_of

# Sample ids looked up by one call: 2 MiB of int64.
BLOCK_IDS = 1 << 18


@dataclass(frozen=True)
class Coverage:
    """The reads of one epoch, counted.

    Attributes:
        num_read: reads over all ranks and steps, without padding.
        num_distinct, num_never: samples that were read at least once, and not at all.
        num_repeats, num_foreign: reads of a sample that was read before, and outside [0, N).
        num_padded: reads that are marked as padding.
        num_short_batches: batches with fewer than `batch_size` samples.
        padded: int64 `[ranks]`, padding by rank.
        reads: int64 `[ranks, groups]`, reads by rank and group of shards.
    """

    num_read: int
    num_distinct: int
    num_repeats: int
    num_never: int
    num_padded: int
    num_short_batches: int
    num_foreign: int
    padded: NDArray[np.int64]
    reads: NDArray[np.int64]

    def faults(self, plan: Plan) -> list[str]:
        """Promises of the plan that the counts do not confirm, in words."""
        num_expected = plan.num_samples - plan.num_dropped
        # A virtual epoch may begin in one permutation of the data and end in the next.
        num_ids = self.num_distinct + self.num_never
        # A mixture repeats its small datasets.
        may_repeat = plan.num_samples != num_ids or sources_of(plan.sampler, 0, 0) is not None
        faults = []
        if self.num_foreign:
            faults.append(f"{plural(self.num_foreign, 'read')} of samples that don't exist")
        if self.num_read != num_expected:
            faults.append(f"{plural(self.num_read, 'read')}, not {num_expected}")
        if self.num_repeats and not may_repeat:
            faults.append(plural(self.num_repeats, "repeat"))
        if self.num_padded != plan.num_padded:
            faults.append(f"{plural(self.num_padded, 'row')} of padding, not {plan.num_padded}")
        if self.num_short_batches and plan.remainder != "uneven":
            short = plural(self.num_short_batches, "batch", "batches")
            faults.append(f"{short} of less than {plan.batch_size} samples")
        return faults


def count_reads(
    plan: Plan, *, epoch: int, group_ends: NDArray[np.int64], report: Callable[[float], None]
) -> Coverage:
    """Count the reads of one epoch over all ranks and steps, by rank and group of shards."""
    num_ids = int(group_ends[-1])
    is_read = np.zeros(num_ids, dtype=np.bool_)
    reads = np.zeros((plan.world_size, len(group_ends)), dtype=np.int64)
    padded = np.zeros(plan.world_size, dtype=np.int64)
    num_short = num_foreign = num_batches = 0
    block_steps = max(1, BLOCK_IDS // plan.batch_size)
    for rank in range(plan.world_size):
        for first in range(0, plan.num_steps, block_steps):
            steps = range(first, min(first + block_steps, plan.num_steps))
            # Ids and validity of a step together: the plan caches one block of steps.
            batches = [
                (plan.indices(epoch, step, rank), plan.valid(epoch, step, rank)) for step in steps
            ]
            num_short += sum(len(ids) < plan.batch_size for ids, _ in batches)
            valid = np.concatenate([valid for _, valid in batches])
            ids = np.concatenate([ids for ids, _ in batches])[valid]
            padded[rank] += np.count_nonzero(~valid)
            is_known = (ids >= 0) & (ids < num_ids)
            num_foreign += int(np.count_nonzero(~is_known))
            ids = ids[is_known]
            is_read[ids] = True
            group = np.searchsorted(group_ends, ids, side="right")
            reads[rank] += np.bincount(group, minlength=len(group_ends))
            num_batches += len(steps)
            report(num_batches)
    num_read, num_distinct = int(reads.sum()), int(np.count_nonzero(is_read))
    return Coverage(
        num_read=num_read,
        num_distinct=num_distinct,
        num_repeats=num_read - num_distinct,
        num_never=num_ids - num_distinct,
        num_padded=int(padded.sum()),
        num_short_batches=num_short,
        num_foreign=num_foreign,
        padded=padded,
        reads=reads,
    )
