"""Samplers: from a position of an epoch to a sample id, as pure functions.

A sampler owns no position and draws nothing from a generator: `indices` gives the same ids for the
same epoch and positions, in any order, process and block size. That is what makes the global order
independent of the cluster (I3) and resuming free (I4).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.plan.arguments import whole
from shardwise.plan.permute import FullSampler, as_positions
from shardwise.plan.protocol import Sampler, epoch_parts, ids_of_epochs, lanes_of, positions_of
from shardwise.plan.window import SizesView, WindowSampler, WindowShape


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
        places = as_positions(positions, self.num_samples)
        size = self.inner.num_samples
        # Python ints: the position since training started may pass any width.
        first, offset = divmod(operator.index(epoch) * self.num_samples, size)
        return ids_of_epochs(self.inner, *np.divmod(places + offset, size), first=first)

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
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
        return {
            "sampler": "virtual epochs",
            "epoch_size": self.num_samples,
            "inner": self.inner.spec(),
        }

    def __repr__(self) -> str:
        return f"VirtualEpochs({self.inner!r}, {self.num_samples})"


Shuffle = bool | Literal["full", "window"]


@suggest_names
class SequentialSampler:
    """Samples in storage order, in every epoch.

    Args:
        num_samples: how many there are.
    """

    def __init__(self, num_samples: SupportsIndex) -> None:
        self.num_samples = whole("num_samples", num_samples, least=0)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """The positions themselves, int64 `[k]`, as a copy."""
        return as_positions(positions, self.num_samples).copy()

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of some ids in an epoch, int64 `[k]`, in any order."""
        return self.indices(epoch, ids)

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch as ranges, in any order: each sample once."""
        return [range(self.num_samples)]

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON."""
        return {"sampler": "sequential", "num_samples": self.num_samples}

    def __repr__(self) -> str:
        return f"SequentialSampler({self.num_samples})"


def is_in_order(sampler: Sampler) -> bool:
    """Whether it is storage order, in epochs of any length."""
    inner = sampler.inner if isinstance(sampler, VirtualEpochs) else sampler
    return isinstance(inner, SequentialSampler)


def make_sampler(
    num_samples: SupportsIndex,
    *,
    shuffle: Shuffle,
    seed: SupportsIndex,
    shard_sizes: Sequence[int] | NDArray[np.int64] | SizesView | None = None,
    window_shape: WindowShape | None = None,
    epoch_size: SupportsIndex | None = None,
) -> Sampler:
    """Make the sampler for a loader's options, which `Plan` documents.

    Raises:
        ValueError: `shuffle` is something else, or `shard_sizes` is missing or of another sum.
    """
    check_choice("shuffle", shuffle, (False, True, "full", "window"))
    count = whole("num_samples", num_samples, least=0)
    if shard_sizes is not None:
        try:
            total = int(np.sum(np.asarray(shard_sizes), dtype=np.int64))
        except (OverflowError, TypeError):
            raise TypeError("shard_sizes must be whole numbers that fit into 64 bits") from None
        if total != count:
            raise ValueError(f"shard_sizes sum up to {total}, but num_samples={count}")
    if shuffle is True:
        shuffle = "full" if shard_sizes is None else "window"
    sampler: Sampler
    if shuffle is False:
        sampler = SequentialSampler(count)
    elif shuffle == "full":
        sampler = FullSampler(count, seed=seed)
    else:
        if shard_sizes is None:
            raise ValueError("shuffle='window' needs shard_sizes; without shards use 'full'")
        shape = {} if window_shape is None else window_shape._asdict()
        sampler = WindowSampler(shard_sizes, seed=seed, **shape)
    return sampler if epoch_size is None else VirtualEpochs(sampler, epoch_size)


def sampler_from_spec(order: dict[str, Any], shard_sizes: NDArray[np.int64]) -> Sampler | None:
    """The sampler that has this `spec()`; None if the spec is not enough to make it.

    States and coverage lines have such specs; the sizes of the data's shards are int64 `[shards]`.

    >>> spec = FullSampler(10, seed=3).spec()
    >>> sampler_from_spec(spec, np.array([4, 6]))
    FullSampler(10, seed=3)
    """
    try:
        sampler = _build_sampler(order, shard_sizes)
    except (KeyError, TypeError, ValueError):
        return None
    # Other data give another description, if any.
    return sampler if sampler is not None and sampler.spec() == order else None


def _build_sampler(order: dict[str, Any], shard_sizes: NDArray[np.int64]) -> Sampler | None:
    kind = order["sampler"]
    if kind == "sequential":
        return SequentialSampler(order["num_samples"])
    if kind == "full":
        return FullSampler(order["num_samples"], seed=order["seed"])
    if kind == "window":
        shape = {name: order[name] for name in ("seed", "window", "lanes")}
        return WindowSampler(shard_sizes, **shape)
    if kind == "virtual epochs":
        inner = _build_sampler(order["inner"], shard_sizes)
        return None if inner is None else VirtualEpochs(inner, order["epoch_size"])
    return None
