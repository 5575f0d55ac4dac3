"""A sampler from its description, where that and the sizes of the shards say all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.epochs import VirtualEpochs
from shardwise.plan.protocol import Sampler
from shardwise.plan.sampler import FullSampler, SequentialSampler
from shardwise.plan.window import WindowSampler

__all__ = ["sampler_from_spec"]


def sampler_from_spec(order: dict[str, Any], shard_sizes: NDArray[np.int64]) -> Sampler | None:
    """The sampler that has this `spec()`; None where that does not say enough to make it.

    Args:
        order: the description, as states and coverage lines have it.
        shard_sizes: int64 `[shards]`, of the data.

    >>> spec = FullSampler(10, seed=3).spec()
    >>> sampler_from_spec(spec, np.array([4, 6]))
    FullSampler(10, seed=3)
    """
    try:
        sampler = _made(order, shard_sizes)
    except (KeyError, TypeError, ValueError):
        return None
    # Other data give another description, if any.
    return sampler if sampler is not None and sampler.spec() == order else None


def _made(order: dict[str, Any], shard_sizes: NDArray[np.int64]) -> Sampler | None:
    kind = order["sampler"]
    if kind == "sequential":
        return SequentialSampler(order["num_samples"])
    if kind == "full":
        return FullSampler(order["num_samples"], seed=order["seed"])
    if kind == "window":
        shape = {name: order[name] for name in ("seed", "window", "lanes")}
        return WindowSampler(shard_sizes, **shape)
    if kind == "virtual epochs":
        inner = _made(order["inner"], shard_sizes)
        return None if inner is None else VirtualEpochs(inner, order["epoch_size"])
    return None
