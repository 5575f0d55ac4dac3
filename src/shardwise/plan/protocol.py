"""The protocol of a sampler, and those of its optional abilities: what a plan knows of an order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having

# Positions of an epoch that are walked through to find ids: some minutes; and those of one call.
_MAX_SCAN, _SCAN = 10**9, 1 << 20


@runtime_checkable
class Sampler(Protocol):
    """The order of samples. `shardwise.testing.check_sampler` holds a new one to this.

    The other protocols of this module are optional abilities: `HasLanes`, `ShiftsLanes`,
    `KnowsEpochIds`, `ForGlobalBatch`, `ReadsOldOrders`, `CutsBatches`, `KnowsPast`,
    `CountsSources`, `HasSeed`, `FindsIds`, `AdvisesUser`. A sampler has one by having its members.
    """

    @property
    def num_samples(self) -> int:
        """The number of positions in an epoch."""

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions`, int64 `[k]`, each position in [0, num_samples).

        Pure: of (epoch, position) alone. May be called by several threads at once.

        Raises:
            ValueError: a position is out of range.
        """

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON: equal only if the order is equal."""


class HasLanes(Protocol):
    """Reads position p from place p mod `lanes` of as many that are read side by side.

    Each rank then gets few of them. Lanes change no order.
    """

    lanes: int


class ShiftsLanes(Protocol):
    """Has epochs that continue in the middle of others: their position 0 is not of lane 0."""

    def first_lane(self, epoch: int) -> int:
        """Return the lane of the epoch's position 0, in [0, lanes)."""


class KnowsEpochIds(Protocol):
    """Knows which ids an epoch has without a walk through it, for certificates."""

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]] | None:
        """Return ranges and int64 arrays of ids, in any order, each id as often as it comes.

        Returns None for an epoch whose ids are not known.
        """


class ForGlobalBatch(Protocol):
    """Needs to know the size of the global batches that it is cut into.

    The plan calls this wherever it learns of another size, and asks the result alone. Where the
    result's `spec()` has that size as "global_batch", a state is resumed in the order that it was
    taken in, also by a loader of other global batches.
    """

    def for_global_batch(self, size: int) -> Sampler:
        """Return the same order for global batches of `size` samples (batch size x world size)."""


class ReadsOldOrders(Protocol):
    """Knows the orders that earlier releases made by the same options."""

    def in_order_of(self, spec: Mapping[str, Any]) -> Sampler:
        """Return the sampler whose order a state describes by `spec`, or this one."""


class BatchEnds(NamedTuple):
    """The cuts of an epoch into batches, as a sampler makes them.

    Attributes:
        ends: int64 `[batches]`, ascending: the position after each batch; the last is the number
            of positions.
        rows: rows of a whole global batch, where all ranks share a batch; the shorter ones come
            last. None where each batch is one rank's, and a step has one for each rank.
    """

    ends: NDArray[np.int64]
    rows: int | None


class CutsBatches(Protocol):
    """Cuts epochs into batches; the plan never joins two of them."""

    def batch_ends(self, epoch: int) -> BatchEnds | None:
        """Return where the batches of an epoch end; None leaves that to the plan."""


class BatchBy(Protocol):
    """Makes the batches of an order by a column: `batch_by=` takes one, such as `sw.buckets`."""

    def resolved(self, column: Callable[[str], Any]) -> BatchBy:
        """Return it with the columns of a dataset in place of the names of its fields."""

    def rows(self, batch_size: int, *, fixed_size: int | None = None) -> int:
        """Return the most samples per rank of a batch, by a loader's batch or global batch size."""

    def over(self, sampler: Sampler, num_samples: int, *, rows: int, seed: int | None) -> Sampler:
        """Return an order of these batches, of `rows` samples over all ranks, from another order.

        `num_samples` is the dataset's; without a seed nothing is shuffled.
        """


class AdvisesUser(Protocol):
    """Knows which options of its order give a user less than they seem to."""

    def advice(self, *, is_dropping: bool) -> list[str]:
        """Return warnings; `is_dropping` where remainder="drop" leaves samples out."""


class KnowsPast(Protocol):
    """Has an order that may change later on: a state depends on what came before it alone."""

    def past(self, position: int) -> dict[str, Any]:
        """Return what the ids before a position, counted from epoch 0 on, depend on, as JSON."""


class CountsSources(Protocol):
    """Draws from several datasets."""

    def sources(self, epoch: int, position: int) -> dict[str, dict[str, float]] | None:
        """Return samples and epochs by dataset before a position of an epoch; None for one."""


class HasSeed(Protocol):
    """Has a seed, which keys the randomness of transforms, too."""

    seed: int


class FindsIds(Protocol):
    """Finds ids in an epoch without a walk through it: its order has an inverse."""

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of some distinct ids in an epoch, int64, in any order."""


def positions_of(
    sampler: Sampler, epoch: int, ids: NDArray[np.int64], *, most: int = _MAX_SCAN
) -> NDArray[np.int64]:
    """Return the positions of some ids in an epoch, int64 `[k]`, ascending.

    By the order's inverse, else by a walk through the epoch, 0.02 to 0.4 us a position.

    Raises:
        ValueError: the order has no inverse, and the epoch has more than `most` positions.
    """
    own, count = having(sampler, FindsIds), sampler.num_samples
    if own is not None:
        return np.sort(own.positions_of(epoch, ids))
    if count > most:
        raise ValueError(
            f"{sampler!r} has no inverse, and a walk through the {count} positions of an epoch is "
            f"longer than {most}: give it positions_of(epoch, ids)"
        )
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, count, _SCAN):
        block = np.arange(start, min(start + _SCAN, count))
        found.append(block[np.isin(sampler.indices(epoch, block), ids)])
    return np.concatenate(found)


def lanes_of(sampler: object) -> int:
    """Return a sampler's lanes; 1 for one without lanes."""
    own = having(sampler, HasLanes)
    return 1 if own is None else int(own.lanes)


def first_lane_of(sampler: object, epoch: int) -> int:
    """Return the lane of an epoch's position 0: not 0 where epochs continue others."""
    own = having(sampler, ShiftsLanes)
    return 0 if own is None else int(own.first_lane(epoch))


def seed_of(sampler: object) -> int:
    """Return a sampler's seed; 0 for one without a seed that is an int."""
    own = having(sampler, HasSeed)
    return own.seed if own is not None and isinstance(own.seed, int) else 0


def for_global_batch(sampler: Sampler, size: int) -> Sampler:
    """Return the sampler for global batches of this size, where it needs to know them."""
    own = having(sampler, ForGlobalBatch)
    return sampler if own is None else own.for_global_batch(size)


def batch_ends(sampler: Sampler, epoch: int) -> BatchEnds | None:
    """Return how the sampler cuts the epoch into batches; None where it leaves that to the plan."""
    own = having(sampler, CutsBatches)
    return None if own is None else own.batch_ends(epoch)


def global_batch_of(spec: object) -> int | None:
    """Return the global batch that the order of a sampler's spec was made for; None for none."""
    size = spec.get("global_batch") if isinstance(spec, Mapping) else None
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**62
    return size if is_size else None


def epoch_parts(sampler: Sampler, epoch: int) -> list[range | NDArray[np.int64]] | None:
    """Return the ids of an epoch as ranges and arrays, where the sampler knows them."""
    own = having(sampler, KnowsEpochIds)
    return None if own is None else own.epoch_ids(epoch)


def past_of(sampler: object, position: int) -> dict[str, Any] | None:
    """Return what a sampler's ids before a position depend on; None for all of its `spec()`."""
    own = having(sampler, KnowsPast)
    return None if own is None else own.past(position)


def sources_of(sampler: object, epoch: int, position: int) -> dict[str, dict[str, float]] | None:
    """Return samples and epochs by dataset before a position; None where there is one dataset."""
    own = having(sampler, CountsSources)
    return None if own is None else own.sources(epoch, position)


def ids_of_epochs(
    sampler: Sampler, epochs: NDArray[np.int64], places: NDArray[np.int64], *, first: int = 0
) -> NDArray[np.int64]:
    """Return the sample ids at places of several epochs, counted from `first` on: int64 `[k]`."""
    ids = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        here = np.flatnonzero(epochs == epoch)
        ids[here] = sampler.indices(first + epoch, places[here])
    return ids
