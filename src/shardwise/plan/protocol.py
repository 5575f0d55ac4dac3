"""The protocol of a sampler: what a plan needs to know of an order."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sampler"]


@runtime_checkable
class Sampler(Protocol):
    """The order of samples. `shardwise.testing.check_sampler` holds a new one to this.

    One whose position p is read from place p mod n of n that are read side by side may say so by
    an attribute `lanes`, n: then each rank gets few of them. It changes no order.
    """

    @property
    def num_samples(self) -> int:
        """How many positions an epoch has."""
        ...

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions`, int64 `[k]`, each position in [0, num_samples).

        Pure: of (epoch, position) alone. May be called by several threads at once.

        Raises:
            ValueError: a position is out of range.
        """
        ...

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON: equal for two samplers of the same order only."""
        ...
