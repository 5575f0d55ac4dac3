"""An order that is given: an array of sample ids, the same in every epoch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import as_positions, digest_of_array


class ArraySampler:
    """The ids of an array in their order; ids may repeat or be missing. `seed` keys transforms.

    Raises:
        TypeError: they are no whole numbers.
        ValueError: there is none, one is negative, or the array has not one dimension.
    """

    def __init__(self, order: NDArray[Any], *, seed: int = 0) -> None:
        if order.dtype.kind not in "iu":
            raise TypeError(f"sampler=<array of {order.dtype}>: sample ids are whole numbers")
        if order.ndim != 1 or not len(order) or int(order.min()) < 0:
            lowest = f" from {order.min()} on" if order.size else ""
            shape = f"sampler=<array of shape {order.shape}{lowest}>"
            raise ValueError(f"{shape}: give one row of sample ids, each from 0 on")
        self.num_samples, self.seed, self.largest = len(order), seed, int(order.max())
        self._order = order

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """The sample ids at `positions`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        return np.asarray(self._order[places], dtype=np.int64)

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch: a range where each sample comes once."""
        return [range(self.num_samples) if self._is_whole else self._order.astype(np.int64)]

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON: the ids are named by a digest."""
        return {"sampler": "array", "num_samples": self.num_samples, "ids": self._digest}

    @cached_property
    def _is_whole(self) -> bool:
        return len(np.unique(self._order)) == self.num_samples == self.largest + 1

    @cached_property
    def _digest(self) -> str:
        return digest_of_array(self._order, "<i8")

    def __repr__(self) -> str:
        return f"ArraySampler(<{self.num_samples} ids>)"


def as_sampler(order: Any, seed: int) -> Any:
    """Return the sampler of an array of ids; anything else as it is."""
    return ArraySampler(np.asarray(order), seed=seed) if hasattr(order, "__array__") else order
