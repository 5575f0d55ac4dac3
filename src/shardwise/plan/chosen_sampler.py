"""The sampler of a plan: made by its options or given by the user, and its batches by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import whole
from shardwise.plan.buckets import Buckets
from shardwise.plan.protocol import Sampler
from shardwise.plan.sampler import is_in_order, make_sampler
from shardwise.plan.user_sampler import check_sampler
from shardwise.plan.window import SizesView, WindowShape

__all__ = ["Shuffle", "bucketed", "chosen_sampler"]

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
    """Buckets over a sampler's order.

    Args:
        sampler: the order.
        batch_by: the buckets.
        num_ids: samples in the dataset.
        rows: samples of a global batch, under a budget the most.
        seed: of the order of the batches; an order without shuffle keeps that of its samples.
    """
    own_seed = None if is_in_order(sampler) else whole("seed", seed)
    return batch_by.over(sampler, num_ids, rows=rows, seed=own_seed)
