"""The requests of an epoch: the plan's sample ids, step by step, for one rank."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.engine.request import BatchRequest
from shardwise.plan import Plan

__all__ = ["epoch_requests"]

# Ids of many steps are computed in one numpy call, which costs as much as some thousand ids.
_MAX_BLOCK = 65_536


def epoch_requests(
    plan: Plan, *, epoch: int, rank: int, first_step: int = 0, stride: int = 1
) -> Iterator[BatchRequest]:
    """Yield the requests of steps first_step, first_step + stride, ... of an epoch on one rank."""
    steps = range(first_step, plan.num_steps, stride)
    padded = plan.remainder == "pad"
    # Few at first, so that the first batch is not late.
    num_steps = 1
    at = 0
    while at < len(steps):
        block = steps[at : at + num_steps]
        batches = plan.batches(epoch, block, rank)
        for step, (ids, valid) in zip(block, batches, strict=True):
            yield BatchRequest(epoch, step, ids, valid if padded else None)
        at += len(block)
        num_steps = max(1, min(num_steps * 4, _MAX_BLOCK // plan.batch_size))
