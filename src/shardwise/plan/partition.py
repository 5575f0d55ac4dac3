"""The partition: which positions of an epoch are a rank's, step by step.

Global batch s covers the W * B positions from `start + s * W * B` on; of these, rank r has the
positions p with p mod W == r, in ascending order. This keeps: each position once over all ranks
(I1), equal steps on all ranks (I2), and the same samples in global batch s for every world size of
the same global batch (I3). Imports numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import whole

__all__ = ["Partition", "Remainder"]

Remainder = Literal["drop", "pad", "uneven"]
_REMAINDERS = ("drop", "pad", "uneven")


@dataclass(frozen=True)
class Partition:
    """How the positions of an epoch, or what is left of it, are shared out.

    Args:
        num_samples: N, positions in the epoch.
        batch_size: B, samples a rank and step.
        world_size: W, ranks.
        remainder: what becomes of the last positions that don't fill a global batch. "drop": they
            are left out and counted. "pad": the batch is filled with positions from the epoch's
            beginning on, wherever it was resumed; they are not valid. "uneven": the last batch is
            shorter on some ranks, perhaps empty.
        start: the position to go on from, any in [0, N]; no matter of which batch or world size.

    Since p mod W counts from the epoch's beginning and not from `start`, a rank meets the same
    residues, and so the same lanes of a window shuffle, wherever it resumes.

    >>> Partition(10, 2, 2).positions(0, rank=1)[0]
    array([1, 3])
    """

    num_samples: int
    batch_size: int
    world_size: int
    remainder: Remainder = "drop"
    start: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_samples", 0), ("batch_size", 1), ("world_size", 1), ("start", 0)):
            # As Python's ints: numpy's would overflow, and are not JSON.
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        if self.remainder not in _REMAINDERS:
            raise ValueError(f"remainder={self.remainder!r} must be 'drop', 'pad' or 'uneven'")
        if self.start > self.num_samples:
            raise ValueError(
                f"start={self.start} is behind the end of the epoch of {self.num_samples} samples"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples a step, over all ranks."""
        return self.batch_size * self.world_size

    @property
    def num_steps(self) -> int:
        """Batches of what is left: the same on every rank."""
        left = self.num_samples - self.start
        if self.remainder == "drop":
            return left // self.global_batch_size
        return -(-left // self.global_batch_size)

    @property
    def num_dropped(self) -> int:
        """Positions of what is left that no rank yields, over all ranks."""
        if self.remainder != "drop":
            return 0
        return (self.num_samples - self.start) % self.global_batch_size

    @property
    def num_padded(self) -> int:
        """Rows that repeat a sample to fill the last batch, over all ranks."""
        if self.remainder != "pad":
            return 0
        return -(self.num_samples - self.start) % self.global_batch_size

    def positions(self, step: int, rank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """One rank's positions at one step: `(positions, valid)`, int64 and bool `[k]`.

        k is `batch_size`, but in the last step of "uneven", where it may be less, also 0. Not
        valid are rows that "pad" filled in.

        Raises:
            ValueError: there is no such step or rank.
        """
        return self.block(step, step + 1, rank)

    def block(
        self, first: int, last: int, rank: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """One rank's positions at steps [first, last), behind one another, as in `positions`.

        Step s has rows `(s - first) * batch_size` and on.
        """
        first, last, rank = whole("step", first), whole("step", last), whole("rank", rank)
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank={rank} must be in 0..{self.world_size - 1}")
        if not 0 <= first < last <= self.num_steps:
            steps = f"{first}" if last == first + 1 else f"{first} to {last - 1}"
            raise ValueError(f"step {steps}: there are {self.num_steps} steps, from 0 on")
        begin = self.start + first * self.global_batch_size
        begin += (rank - begin) % self.world_size
        rows = (last - first) * self.batch_size
        positions = np.arange(rows, dtype=np.int64) * self.world_size + begin
        valid = positions < self.num_samples
        if self.remainder == "pad" and not valid[-1]:
            positions %= self.num_samples
        elif not valid[-1]:
            positions, valid = positions[valid], valid[valid]
        return positions, valid
