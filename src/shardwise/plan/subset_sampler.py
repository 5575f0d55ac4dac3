"""The order of a subset: another sampler's, over chosen samples. Each of them once, as it does."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.plan.lanes import first_lane_of, lanes_of
from shardwise.plan.protocol import Sampler, epoch_parts

__all__ = ["SubsetSampler"]


class SubsetSampler:
    """The order of another sampler, over chosen samples.

    Args:
        indices: int `[n]`, the chosen sample ids.
        sampler: orders the entries of `indices`; its ids must lie in [0, n).

    >>> from shardwise.plan import SequentialSampler
    >>> SubsetSampler([30, 10, 20], SequentialSampler(3)).indices(0, np.arange(3))
    array([30, 10, 20])
    """

    def __init__(self, indices: ArrayLike, sampler: Sampler) -> None:
        chosen = np.asarray(indices)
        if chosen.ndim != 1:
            raise ValueError(f"indices must have one dimension, not the shape {chosen.shape}")
        if chosen.size and chosen.dtype.kind not in "iu":
            raise TypeError(
                f"indices must be whole numbers, not {chosen.dtype}; "
                "for a mask, give np.flatnonzero(mask)"
            )
        self._chosen = chosen.astype(np.int64)  # a copy: the caller may change his own
        self._sampler = sampler
        self.num_samples = sampler.num_samples
        self.lanes = lanes_of(sampler)

    def first_lane(self, epoch: int) -> int:
        """The lane of position 0 of `epoch`."""
        return first_lane_of(self._sampler, epoch)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`.

        Raises:
            ValueError: the inner sampler gave an id outside [0, n).
        """
        places = self._sampler.indices(epoch, positions)
        if places.size and int(places.view(np.uint64).max()) >= len(self._chosen):
            raise ValueError(
                f"{self._sampler!r} gives ids up to {int(places.max())}, the subset has only "
                f"{len(self._chosen)} samples; make the inner sampler for that many"
            )
        return self._chosen[places]

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]] | None:
        """The chosen ids of the inner sampler's; None where it does not know its own."""
        parts = epoch_parts(self._sampler, epoch)
        if parts is None:
            return None
        return [
            self._chosen[part.start : part.stop] if isinstance(part, range) else self._chosen[part]
            for part in parts
        ]

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON: the subset is named by a digest."""
        digest = hashlib.sha256(self._chosen.astype("<i8").tobytes()).hexdigest()[:16]
        return {"sampler": "subset", "indices": digest, "inner": self._sampler.spec()}

    def __repr__(self) -> str:
        return f"SubsetSampler(<{len(self._chosen)} indices>, {self._sampler!r})"
