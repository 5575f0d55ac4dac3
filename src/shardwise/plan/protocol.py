"""The protocol of a sampler: what a plan needs to know of an order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class BatchEnds(NamedTuple):
    """How a sampler cuts an epoch into batches.

    Attributes:
        ends: int64 `[batches]`, ascending: the position after each batch; the last is the number
            of positions.
        rows: rows of a whole global batch, where all ranks share a batch; the shorter ones come
            last. None where each batch is one rank's, and a step has one for each rank.
    """

    ends: NDArray[np.int64]
    rows: int | None


@runtime_checkable
class Sampler(Protocol):
    """The order of samples. `shardwise.testing.check_sampler` holds a new one to this.

    One whose position p is read from place p mod n of n that are read side by side may say so by
    an attribute `lanes`, n: then each rank gets few of them. It changes no order.

    One that knows which ids an epoch has, without a walk through it, may say so by a method
    `epoch_ids(epoch)`: a list of ranges and int64 arrays of ids, in any order, each id as often as
    the epoch has it; or None for an epoch of which it is not known. Certificates compare what was
    handed out with it; of other samplers they walk the plan.

    `for_global_batch(size: int) -> Sampler` gives the same order for global batches of `size`
    samples (batch size x world size), for a sampler that needs to know them. The plan calls it
    wherever it learns of another size, and asks the result alone. Where the result's `spec()` has
    that size as "global_batch", a state is resumed in the order that it was taken in, also by a
    loader of other global batches.

    `batch_ends(epoch: int) -> BatchEnds | None` cuts the epoch into batches of its own; None leaves
    that to the plan. The plan never joins two of these batches.
    """

    @property
    def num_samples(self) -> int:
        """How many positions an epoch has."""
        ...

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions`, int64 `[k]`, each position in [0, num_samples).

        Pure: of (epoch, position) alone. May be called by several threads at once.

        Raises:
            ValueError: a position is out of range.
        """
        ...

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON: equal for two samplers of the same order only."""
        ...


def for_global_batch(sampler: Sampler, size: int) -> Sampler:
    """The sampler made for global batches of this size, where it needs to know them."""
    make = getattr(sampler, "for_global_batch", None)
    return sampler if make is None else cast("Sampler", make(size))


def batch_ends(sampler: Sampler, epoch: int) -> BatchEnds | None:
    """How the sampler cuts the epoch into batches; None where it leaves that to the plan."""
    cut = getattr(sampler, "batch_ends", None)
    return None if cut is None else cast("BatchEnds | None", cut(epoch))


def global_batch_of(spec: object) -> int | None:
    """The global batch that the order of a sampler's spec was made for; None for none."""
    size = spec.get("global_batch") if isinstance(spec, Mapping) else None
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**62
    return size if is_size else None


def epoch_parts(sampler: Sampler, epoch: int) -> list[range | NDArray[np.int64]] | None:
    """The ids of an epoch as ranges and arrays, where the sampler knows them without a walk."""
    parts = getattr(sampler, "epoch_ids", None)
    return None if parts is None else parts(epoch)


def ids_of_epochs(
    sampler: Sampler, epochs: NDArray[np.int64], places: NDArray[np.int64], *, first: int = 0
) -> NDArray[np.int64]:
    """The sample ids at places of several epochs, counted from `first` on: int64 `[k]`."""
    ids = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        here = np.flatnonzero(epochs == epoch)
        ids[here] = sampler.indices(first + epoch, places[here])
    return ids
