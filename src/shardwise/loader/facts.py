"""What a loader's repr says, on a terminal and in a notebook."""

from __future__ import annotations

from shardwise.engine.request import Executor
from shardwise.errors import RankError
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import Plan

__all__ = ["facts_of"]


def facts_of(
    ranks: CurrentRanks, plan: Plan, executor: Executor, *, epoch: int
) -> list[tuple[str, object]]:
    """Names and values, of the ranks as they are now; the error alone where these are not known."""
    try:
        now = ranks.now()
    except RankError as error:
        return [("rank", str(error))]
    plan = plan.divided(now.world_size).require_steps().resumed(0, epoch=epoch)
    names = ("batch_size", "world_size", "remainder", "num_steps", "num_dropped", "sampler")
    return [
        ("rank", now.rank),
        *((name, getattr(plan, name)) for name in names),
        ("executor", str(executor.concurrency)),
        ("epoch", epoch),
    ]
