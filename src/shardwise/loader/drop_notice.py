"""The warning about samples that a default remainder leaves out of each epoch."""

from __future__ import annotations

import logging

from shardwise.plan import Plan

__all__ = ["DropNotice"]

_logger = logging.getLogger("shardwise")


class DropNotice:
    """Warns once, on rank 0, of the samples that an epoch leaves out by default.

    Args:
        is_default: whether the remainder was left to the library.
    """

    def __init__(self, *, is_default: bool) -> None:
        self.is_due = is_default

    def say(self, plan: Plan, rank: int) -> None:
        """Log the warning, unless it was logged, or nothing is dropped."""
        if self.is_due and rank == 0 and plan.num_dropped:
            _logger.warning(
                "each epoch leaves out %d of %d samples, other ones each time, since they do not "
                "fill a global batch of %d: pass remainder='pad' or 'uneven' to have them, or "
                "remainder='drop' to say that this is meant",
                plan.num_dropped,
                plan.num_samples,
                plan.global_batch_size,
            )
        self.is_due = False
