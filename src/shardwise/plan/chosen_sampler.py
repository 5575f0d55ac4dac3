"""The sampler of a plan: made by its options, or given by the user and checked; and its buckets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import whole
from shardwise.plan.buckets import Buckets
from shardwise.plan.protocol import Sampler
from shardwise.plan.sampler import FullSampler, SequentialSampler, is_in_order, make_sampler
from shardwise.plan.weighted import WeightedSampler
from shardwise.plan.window import SizesView, WindowSampler, WindowShape

__all__ = ["Shuffle", "bucketed", "check_ids", "check_sampler", "chosen_sampler"]

Shuffle = bool | Literal["full", "window"]


def chosen_sampler(
    num_samples: int,
    *,
    sampler: Sampler | None,
    shuffle: Shuffle,
    seed: SupportsIndex,
    shard_sizes: Sequence[int] | NDArray[np.int64] | SizesView | None,
    window_shape: WindowShape | None,
    epoch_size: SupportsIndex | None,
) -> Sampler:
    """The user's sampler, or the one that the options make; the arguments are those of `Plan`.

    Raises:
        TypeError: `sampler` is no Sampler, or an option is of another kind.
        ValueError: options beside a sampler, a sampler of another number of samples, or options
            that can't be used.
    """
    if sampler is None:
        if shuffle is True:
            shuffle = "full" if shard_sizes is None else "window"
        return make_sampler(
            num_samples,
            shuffle=shuffle,
            seed=seed,
            shard_sizes=shard_sizes,
            window_shape=window_shape,
            epoch_size=epoch_size,
        )
    check_sampler(sampler, num_samples)
    options = {"shuffle": shuffle or None, "seed": seed or None, "epoch_size": epoch_size}
    twice = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if twice or shard_sizes is not None:
        raise ValueError(
            f"{', '.join(twice) or 'shard_sizes'} and sampler={sampler!r}: the order is "
            "the sampler's alone; leave one of them out, or make the sampler so"
        )
    return sampler


def bucketed(
    sampler: Sampler, batch_by: Buckets, *, num_ids: int, rows: int, seed: SupportsIndex
) -> Sampler:
    """Buckets over a sampler's order: as `Buckets.over`; an order without shuffle needs no seed."""
    own_seed = None if is_in_order(sampler) else whole("seed", seed)
    return batch_by.over(sampler, num_ids, rows=rows, seed=own_seed)


# The orders of a whole dataset: each of its samples once.
_WHOLE = (SequentialSampler, FullSampler, WindowSampler)
# What torch's samplers are called here.
_INSTEAD = {
    "RandomSampler": "use shuffle=True and seed=",
    "SequentialSampler": "leave sampler= out: shuffle=False is the default",
    "SubsetRandomSampler": "use ds.subset(indices) with shuffle=True",
    "WeightedRandomSampler": "use sw.WeightedSampler(weights), which draws by your weights",
    "DistributedSampler": "leave sampler= out: rank and world size are found",
    "BatchSampler": "use batch_size=",
}


def check_sampler(sampler: Any, num_samples: int) -> None:
    """Refuse an object that is no Sampler, or orders another number of samples.

    Raises:
        TypeError: it is no Sampler, or its `spec()` is not JSON.
        ValueError: it orders another number of samples.
    """
    if not isinstance(sampler, Sampler):
        kind = type(sampler).__name__
        instead = _INSTEAD.get(kind, "for a list of indices use ds.subset(indices)")
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
    try:
        json.dumps(sampler.spec())
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"spec() of {sampler!r} goes into the loader's state, so it must be JSON: {error}"
        ) from error


def check_ids(sampler: Sampler, ids: NDArray[np.int64], count: int, num_samples: int) -> None:
    """Refuse the ids of a sampler if their number is wrong, or the data does not have them.

    Raises:
        ValueError: they are no int64 `[count]`, or not in [0, num_samples).
    """
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
