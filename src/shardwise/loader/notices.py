"""Warnings of a loader: samples that each epoch drops, and epochs that are read again."""

from __future__ import annotations

import logging
import warnings
from functools import lru_cache
from typing import Any

from shardwise.base.abilities import having
from shardwise.plan import Plan
from shardwise.plan.protocol import AdvisesUser
from shardwise.plan.sampler import is_in_order

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
            own = having(plan.sampler, AdvisesUser)
            for text in [] if own is None else own.advice(is_dropping=plan.remainder == "drop"):
                warn_once(text)
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


@lru_cache(maxsize=256)
def warn_once(text: str, *values: object) -> None:
    """Log a warning, unless the process logged the same one."""
    _logger.warning(text, *values)


# A pass's count if it was read as a whole, or if it gave an unknown number of batches.
READ_AS_A_WHOLE, AT_LEAST_ONE = 2, 1


class EpochNotice:
    """Warns once that a shuffled epoch starts again, and of a `set_epoch` to before a loaded state.

    A program may look at one batch and start again: more than one batch has to be repeated.

    Args:
        cells: two integers, at first 0, which worker processes may share: batches that were
            repeated since the position was set, and whether that was warned of.
    """

    def __init__(self, cells: Any = None) -> None:
        self._cells = [0, 0] if cells is None else cells
        self._loaded: int | None = None

    def begin(self, plan: Plan, epoch: int, rank: int, *, num_repeated: int) -> None:
        """A pass starts; one that started there before gave `num_repeated` batches."""
        self._loaded = None
        if num_repeated and not is_in_order(plan.sampler):
            self._cells[0] += num_repeated
            if self._cells[0] > 1 and not self._cells[1] and rank == 0:
                self._cells[1] = 1
                warnings.warn(
                    f"epoch {epoch} is read again, in the same order: call set_epoch({epoch + 1}) "
                    "before the next pass; or, where passes are shorter than the data on purpose, "
                    "give their number of samples over all ranks as epoch_size=, so that each "
                    "goes on where the last one ended",
                    stacklevel=4,
                )

    def load(self, epoch: int) -> None:
        self._loaded, self._cells[0] = epoch, 0

    def set(self, epoch: int, rank: int) -> None:
        loaded, self._loaded, self._cells[0] = self._loaded, None, 0
        if loaded is not None and epoch < loaded and rank == 0:
            warnings.warn(
                f"set_epoch({epoch}) goes back behind the loaded state, which stands in epoch "
                f"{loaded}: epoch {epoch} is read again from its beginning. A state that was taken "
                "after an epoch's last batch stands at the beginning of the next one: go on with "
                "loader.epoch in place of a number of the program's own",
                stacklevel=3,
            )
