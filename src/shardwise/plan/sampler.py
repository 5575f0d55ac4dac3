"""Samplers: from a position of an epoch to a sample id, as pure functions.

A sampler owns no position and draws nothing from a generator: `indices` gives the same ids for the
same epoch and positions, in any order, process and block size. That is what makes the global order
independent of the cluster (I3) and resuming free (I4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.plan.arguments import as_positions, whole
from shardwise.plan.lanes import first_lane_of, lanes_of
from shardwise.plan.last_values import LastValues
from shardwise.plan.permute import MAX_SIZE, Permutation, mix, mix_array
from shardwise.plan.protocol import Sampler, epoch_parts
from shardwise.plan.virtual_epochs import VirtualEpochs
from shardwise.plan.window import SizesView, WindowSampler, WindowShape

Shuffle = bool | Literal["full", "window"]


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

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch as ranges, in any order: each sample once."""
        return [range(self.num_samples)]

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON."""
        return {"sampler": "sequential", "num_samples": self.num_samples}

    def __repr__(self) -> str:
        return f"SequentialSampler({self.num_samples})"


class FullSampler:
    """A permutation of all samples, another for each epoch and seed; computed, not stored.

    Args:
        num_samples: how many there are.
        seed: any whole number.
    """

    def __init__(self, num_samples: SupportsIndex, *, seed: SupportsIndex = 0) -> None:
        self.num_samples = whole("num_samples", num_samples, least=0)
        self.seed = whole("seed", seed)
        self._permutations: LastValues[int, Permutation] = LastValues()

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`; about 25 ns each."""
        permutation = self._permutations.get(
            epoch, lambda e: Permutation(self.num_samples, mix(self.seed, e))
        )
        return permutation(positions)

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch as ranges, in any order: each sample once."""
        return [range(self.num_samples)]

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON."""
        return {"sampler": "full", "num_samples": self.num_samples, "seed": self.seed}

    def __repr__(self) -> str:
        return f"FullSampler({self.num_samples}, seed={self.seed})"


class ResamplingSampler:
    """Uniform draws with replacement.

    Args:
        num_samples: how many samples to draw from.
        num_draws: positions in an epoch; any number.
        seed: any whole number.

    An epoch is not a pass over the data: with as many draws as samples, about 37 % of them are
    never drawn. `VirtualEpochs` gives short epochs that miss nothing.
    """

    def __init__(
        self, num_samples: SupportsIndex, *, num_draws: SupportsIndex, seed: SupportsIndex = 0
    ) -> None:
        self._size = whole("num_samples", num_samples, least=0)
        self.num_samples = whole("num_draws", num_draws, least=0)
        self.seed = whole("seed", seed)
        if self.num_samples and not self._size:
            raise ValueError(f"num_draws={self.num_samples} from num_samples=0: nothing to draw")
        if self._size > MAX_SIZE:
            raise ValueError(f"num_samples={self._size} is more than 2**62")

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids drawn at `positions` of `epoch`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        if not places.size:
            return places.copy()
        hashed = mix_array(mix(self.seed, epoch), places)
        size = np.uint64(self._size)
        # hashed % size, but a division by a constant is several times faster.
        return (hashed - hashed // size * size).view(np.int64)

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON."""
        return {
            "sampler": "resampling",
            "num_samples": self._size,
            "num_draws": self.num_samples,
            "seed": self.seed,
        }

    def __repr__(self) -> str:
        return f"ResamplingSampler({self._size}, num_draws={self.num_samples}, seed={self.seed})"


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
    """The sampler that a loader's options ask for; `Plan` says what they are.

    Raises:
        ValueError: `shuffle` is something else, or `shard_sizes` is missing or of another sum.
    """
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
    elif shuffle == "window":
        if shard_sizes is None:
            raise ValueError("shuffle='window' needs shard_sizes; without shards use 'full'")
        shape = {} if window_shape is None else window_shape._asdict()
        sampler = WindowSampler(shard_sizes, seed=seed, **shape)
    else:
        raise ValueError(f"shuffle={shuffle!r} must be False, True, 'full' or 'window'")
    return sampler if epoch_size is None else VirtualEpochs(sampler, epoch_size)


def sampler_from_spec(order: dict[str, Any], shard_sizes: NDArray[np.int64]) -> Sampler | None:
    """The sampler that has this `spec()`; None where that does not say enough to make it.

    States and coverage lines have such specs; the sizes of the data's shards are int64 `[shards]`.

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
