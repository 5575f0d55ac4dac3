"""The warning about samples that a default remainder leaves out of each epoch."""

from __future__ import annotations

import logging
from functools import lru_cache

from shardwise.plan import BucketSampler, Plan, Sampler

_logger = logging.getLogger("shardwise")


class DropNotice:
    """Warns once, on rank 0, of the samples that an epoch leaves out by default.

    Loaders of the same sizes, such as one made in each epoch, warn once in a process.

    Args:
        is_default: whether the remainder was left to the library.
    """

    def __init__(self, *, is_default: bool) -> None:
        self.is_due = is_default
        self.is_first = True

    def say(self, plan: Plan, rank: int) -> None:
        """Log the warning, unless it was logged already or nothing is dropped."""
        if self.is_first and rank == 0:
            _say_few(plan)
            if plan.remainder == "drop":
                _say_never(plan.sampler)
        self.is_first = False
        if self.is_due and rank == 0 and plan.num_dropped:
            warn_once(
                "Dropping %d of %d samples per epoch, different ones each time (incomplete last "
                "%s). Set remainder='pad' or 'uneven' to keep them, 'drop' to silence this.",
                plan.num_dropped,
                plan.num_samples,
                f"batch of {plan.global_batch_size}"
                if plan.has_even_steps
                else f"step of {plan.world_size} ranks",
            )
        self.is_due = False


def _say_few(plan: Plan) -> None:
    """Log that the window of `sw.buckets` is too small for the global batch."""
    few = plan.sampler.few_batches if isinstance(plan.sampler, BucketSampler) else None
    if few is not None:
        warn_once(
            "sw.buckets(window=%d) sorts %d global batches of %d samples together, so that lengths "
            "of a batch differ nearly as without buckets: leave window= out for 64 of them",
            *few,
            plan.order_size,
        )


def _say_never(sampler: Sampler) -> None:
    """Log the groups of `sw.buckets` that are smaller than a batch, also where "drop" is meant."""
    never = sampler.never_whole() if isinstance(sampler, BucketSampler) else None
    if never is not None:
        warn_once(
            "%d groups of shape= are smaller than a global batch, so that remainder='drop' leaves "
            "them out of every epoch; the smallest is %s with %d samples: pass remainder='pad' or "
            "'uneven' to have them, or make the batch smaller",
            never[0],
            never[2],
            never[1],
        )


@lru_cache(maxsize=256)
def warn_once(text: str, *values: object) -> None:
    """Log a warning, unless the process logged the same one."""
    _logger.warning(text, *values)
