"""Epochs of another length than their sampler's: they walk on through its epochs."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import as_positions, whole
from shardwise.plan.protocol import Sampler, epoch_parts, ids_of_epochs, lanes_of, positions_of


class VirtualEpochs:
    """Epochs of another length, which walk on through the inner sampler's epochs.

    Args:
        sampler: the order to walk through, `inner`; not empty.
        epoch_size: positions in a virtual epoch; less or more than the inner epoch has.

    Position p of virtual epoch e is position `e * epoch_size + p` of all inner epochs in a row.
    With N positions in an inner epoch the first ceil(N / epoch_size) virtual epochs have every
    sample, and none twice before all were there once. With `remainder="drop"` each virtual epoch
    drops its own remainder: make `epoch_size` a multiple of the global batch, or pad.
    """

    def __init__(self, sampler: Sampler, epoch_size: SupportsIndex) -> None:
        self.num_samples = whole("epoch_size", epoch_size, least=1)
        if self.num_samples >= 2**63:
            raise ValueError(f"epoch_size={self.num_samples} does not fit into 64 bits")
        self.inner = sampler
        self.lanes = lanes_of(sampler)
        if not sampler.num_samples:
            raise ValueError(f"epoch_size={self.num_samples} of no samples: {sampler!r} is empty")

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of virtual epoch `epoch`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        size = self.inner.num_samples
        # Python ints: the position since training started may pass any width.
        first, offset = divmod(operator.index(epoch) * self.num_samples, size)
        return ids_of_epochs(self.inner, *np.divmod(places + offset, size), first=first)

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of some ids in virtual epoch `epoch`, int64 `[k]`, in any order."""
        size, begin = self.inner.num_samples, operator.index(epoch) * self.num_samples
        inner = range(begin // size, -(-(begin + self.num_samples) // size))
        found = [positions_of(self.inner, each, ids) + (each * size - begin) for each in inner]
        positions = np.concatenate(found)
        return positions[(positions >= 0) & (positions < self.num_samples)]

    def first_lane(self, epoch: int) -> int:
        """The lane of position 0 of virtual epoch `epoch`, in [0, lanes).

        Counted as if the inner epochs went on without a break: within one of them each lane keeps
        its ranks, and between two of them all lanes are dealt again.
        """
        return operator.index(epoch) * self.num_samples % self.lanes

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]] | None:
        """The ids of the inner epochs, where a virtual epoch is made of whole ones; else None."""
        size = self.inner.num_samples
        first, offset = divmod(operator.index(epoch) * self.num_samples, size)
        if offset or self.num_samples % size:
            return None
        parts: list[range | NDArray[np.int64]] = []
        for inner in range(first, first + self.num_samples // size):
            more = epoch_parts(self.inner, inner)
            if more is None:
                return None
            parts += more
        return parts

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON."""
        return {
            "sampler": "virtual epochs",
            "epoch_size": self.num_samples,
            "inner": self.inner.spec(),
        }

    def __repr__(self) -> str:
        return f"VirtualEpochs({self.inner!r}, {self.num_samples})"
