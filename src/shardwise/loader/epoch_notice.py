"""Warnings about epochs that are read again.

A pass may start where an earlier one did, or `set_epoch` may name an epoch before a loaded state's.
One mechanism for the loader and for the parts of torch's own, on rank 0.
"""

from __future__ import annotations

import warnings
from typing import Any

from shardwise.plan import Plan
from shardwise.plan.sampler import is_in_order

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
        """A state of this epoch was loaded."""
        self._loaded, self._cells[0] = epoch, 0

    def set(self, epoch: int, rank: int) -> None:
        """An epoch was named."""
        loaded, self._loaded, self._cells[0] = self._loaded, None, 0
        if loaded is not None and epoch < loaded and rank == 0:
            warnings.warn(
                f"set_epoch({epoch}) goes back behind the loaded state, which stands in epoch "
                f"{loaded}: epoch {epoch} is read again from its beginning. A state that was taken "
                "after an epoch's last batch stands at the beginning of the next one: go on with "
                "loader.epoch in place of a number of the program's own",
                stacklevel=3,
            )
