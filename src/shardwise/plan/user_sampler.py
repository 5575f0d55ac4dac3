"""Samplers that the user gives, as an array of ids or as an object, and checks of them."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import digest_of_array
from shardwise.plan.permute import FullSampler, as_positions
from shardwise.plan.protocol import Sampler
from shardwise.plan.sampler import SequentialSampler
from shardwise.plan.weighted import WeightedSampler
from shardwise.plan.window import WindowSampler


class ArraySampler:
    """The ids of an array in their order; ids may repeat or be missing. `seed` keys transforms.

    Raises:
        TypeError: they are not whole numbers.
        ValueError: the array is empty or not one-dimensional, or an id is negative.
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
        places = as_positions(positions, self.num_samples)
        return np.asarray(self._order[places], dtype=np.int64)

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch: a range where each sample comes once."""
        return [range(self.num_samples) if self._is_whole else self._order.astype(np.int64)]

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON; a digest stands for the ids."""
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


# The orders of a whole dataset: each of its samples once.
_WHOLE = (SequentialSampler, FullSampler, WindowSampler)
# Replacements for torch's samplers.
_INSTEAD = {
    "RandomSampler": "use shuffle=True and seed=",
    "SequentialSampler": "leave sampler= out: shuffle=False is the default",
    "SubsetRandomSampler": "use ds.subset(indices) with shuffle=True",
    "WeightedRandomSampler": "use sw.WeightedSampler(weights), which draws by your weights",
    "DistributedSampler": "leave sampler= out: rank and world size are found",
    "BatchSampler": "use batch_size=",
}


def check_sampler(sampler: Any, num_samples: int) -> None:
    """Refuse an object that is not a Sampler, or orders another number of samples."""
    if not isinstance(sampler, Sampler):
        kind = type(sampler).__name__
        instead = _INSTEAD.get(
            kind, "for a list of indices use ds.subset(indices), or np.array(indices) as sampler="
        )
        raise TypeError(
            f"sampler={kind}: a sampler here has num_samples, indices(epoch, positions) and "
            f"spec(), so that any rank can compute any part of the order, as "
            f"sw.FullSampler(len(ds), seed=0) can; {instead}"
        )
    if isinstance(sampler, _WHOLE):
        if sampler.num_samples != num_samples:
            raise ValueError(
                f"{sampler!r} orders {sampler.num_samples} samples, the dataset has "
                f"{num_samples}: make it for that many; for a part of them use ds.subset(indices)"
            )
        return
    if isinstance(sampler, WeightedSampler) and sampler.num_ids != num_samples:
        raise ValueError(
            f"{sampler!r} has {sampler.num_ids} weights, the dataset has {num_samples} samples: "
            "give one for each"
        )
    if isinstance(sampler, ArraySampler) and sampler.largest >= num_samples:
        raise ValueError(
            f"{sampler!r} has ids up to {sampler.largest}, the dataset has {num_samples} samples: "
            "is it the order of another dataset?"
        )
    try:
        json.dumps(sampler.spec())
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"spec() of {sampler!r} goes into the loader's state, so it must be JSON: {error}"
        ) from error


def check_ids(sampler: Sampler, ids: NDArray[np.int64], count: int, num_samples: int) -> None:
    """Refuse the ids of a sampler if their number is wrong, or the data does not have them."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.shape != (count,):
        raise ValueError(
            f"{sampler!r} returned {ids!r:.80} for {count} positions: return an int64 array of as "
            "many sample ids"
        )
    # Seen as unsigned, negative ids are huge: one pass finds both.
    if ids.size and int(ids.view(np.uint64).max()) >= num_samples:
        raise ValueError(
            f"{sampler!r} returned ids from {ids.min()} to {ids.max()}, the dataset has "
            f"{num_samples} samples: make the sampler for that many"
        )


def refuse_options(sampler: Sampler, *, has_sizes: bool, **options: Any) -> None:
    """Refuse options that define an order, since the sampler already does."""
    twice = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if twice or has_sizes:
        raise ValueError(
            f"{', '.join(twice) or 'shard_sizes'} and sampler={sampler!r}: the order is "
            "the sampler's alone; leave one of them out, or make the sampler so"
        )
