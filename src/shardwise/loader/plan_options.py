"""The options of a plan, which `DataLoader`, `IterableDataset` and the samplers all take."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan import Plan, Remainder, Sampler, SequentialSampler, Shuffle

__all__ = ["PlanOptions", "plan_for"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a plan, for any number of ranks; `shardwise.DataLoader` documents them."""

    batch_size: int = 64
    shuffle: Shuffle = False
    seed: int = 0
    sampler: Sampler | None = None
    remainder: Remainder | None = None
    epoch_size: int | None = None

    @property
    def effective_remainder(self) -> Remainder:
        """The remainder; by default "uneven" where nothing is shuffled, else "drop"."""
        if self.remainder is not None:
            return self.remainder
        sampler = self.sampler
        in_order = (
            self.shuffle is False if sampler is None else isinstance(sampler, SequentialSampler)
        )
        return "uneven" if in_order else "drop"

    @property
    def transform_seed(self) -> int:
        """The key of the randomness of transforms: the sampler's seed where it has one."""
        if self.sampler is None:
            return self.seed
        seed = getattr(self.sampler, "seed", 0)
        return seed if isinstance(seed, int) else 0


def plan_for(
    dataset: Sized | int,
    options: PlanOptions,
    *,
    world_size: int,
    shard_sizes: Sequence[int] | NDArray[np.int64] | None = None,
) -> Plan:
    """Make the plan of a dataset.

    Args:
        dataset: anything with a length, or the number of samples. Its `default_shuffle`,
            `shard_sizes` and `window_shape` are used where it has them, as a `Dataset` does.
        options: the user's.
        world_size: ranks.
        shard_sizes: samples a shard, for a window shuffle; None for the dataset's own.

    Raises:
        ValueError: an option is not usable.
        TypeError: `sampler` is no Sampler.
    """
    shuffle: Any = options.shuffle
    if shuffle is True and options.sampler is None:
        default = "full" if shard_sizes is None else "window"
        shuffle = getattr(dataset, "default_shuffle", default)
    if shuffle != "window" or options.sampler is not None:
        shard_sizes = None
    elif shard_sizes is None:
        shard_sizes = getattr(dataset, "shard_sizes", None)
    return Plan(
        dataset if isinstance(dataset, int) else len(dataset),
        batch_size=options.batch_size,
        world_size=world_size,
        seed=options.seed,
        shuffle=shuffle,
        remainder=options.effective_remainder,
        shard_sizes=shard_sizes,
        window_shape=getattr(dataset, "window_shape", None),
        epoch_size=options.epoch_size,
        sampler=options.sampler,
    )
