"""The rows of steps, made for a block of neighbouring steps at a time.

It keeps plans pure: dropping a block changes the speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows", "StepRows"]

Rows = tuple[NDArray[np.int64], NDArray[np.bool_]]


class StepRows:
    """The last block of steps. Safe in threads: at worst two of them make it. Pickles empty."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[Hashable, list[Rows]] | None = None

    def get(
        self,
        whose: Hashable,
        step: int,
        *,
        num_steps: int,
        length: int,
        make: Callable[[range], Iterable[Rows]],
    ) -> Rows:
        """A step's rows.

        Args:
            whose: what else the rows depend on, such as epoch and rank.
            step: the step, in [0, num_steps).
            num_steps: steps of the epoch.
            length: steps of a block.
            make: makes the rows of each of some steps.
        """
        first = step - step % length
        key, kept = (whose, first), self._kept
        if kept is None or kept[0] != key:
            # One assignment: a thread that reads while another writes sees one or the other.
            kept = key, list(make(range(first, min(first + length, num_steps))))
            self._kept = kept
        return kept[1][step - first]

    def __reduce__(self) -> tuple[type[StepRows], tuple[()]]:
        return StepRows, ()
