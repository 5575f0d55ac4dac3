"""The work of an epoch: the plan's indices, step by step, for one rank.

Indices are computed for many steps in one numpy call, few at first so that the first batch comes
at once. Imports the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.engine.request import Work
from shardwise.plan import Plan

__all__ = ["epoch_works"]

# A numpy call costs as much as some thousand indices; blocks of this many make it vanish.
_MAX_BLOCK = 65_536


def epoch_works(
    plan: Plan, *, epoch: int, rank: int, first_step: int = 0, stride: int = 1
) -> Iterator[Work]:
    """Yield the work of steps first_step, first_step + stride, ... of an epoch on one rank."""
    steps = range(first_step, plan.num_steps, stride)
    padded = plan.remainder == "pad"
    num_steps = 1
    at = 0
    while at < len(steps):
        block = steps[at : at + num_steps]
        positions, valid = plan.positions(epoch, block, rank)
        ids = plan.ids(epoch, positions)
        for row, step in enumerate(block):
            rows = slice(row * plan.batch_size, (row + 1) * plan.batch_size)
            yield Work(epoch, step, ids[rows], valid[rows] if padded else None)
        at += len(block)
        num_steps = max(1, min(num_steps * 4, _MAX_BLOCK // plan.batch_size))
