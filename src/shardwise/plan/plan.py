"""The plan: an order and a partition, which together set each rank's samples at each step.

`indices(epoch, step, rank)` is the one idea of the library as a function.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import suggest_names
from shardwise.base.markup import table
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE, Default, whole
from shardwise.plan.balance import checked_costs
from shardwise.plan.left_out import Excluded, RestPartition
from shardwise.plan.order import AnyPartition, Order, cut, no_batch_reason
from shardwise.plan.partition import Partition, Remainder
from shardwise.plan.permute import LastValues
from shardwise.plan.protocol import (
    BatchBy,
    Sampler,
    batch_ends,
    first_lane_of,
    lanes_of,
    seed_of,
)
from shardwise.plan.sampler import Shuffle, make_sampler
from shardwise.plan.user_sampler import as_sampler, check_ids, check_sampler, refuse_options
from shardwise.plan.window import SizesView, WindowShape

Rows = tuple[NDArray[np.int64], NDArray[np.bool_]]

# Rows of one numpy call: a step of 64 alone costs 1 to 3 µs a row, in a block of 4,096 rows 0.15
# to 0.3.
_BLOCK_ROWS = 4_096


@suggest_names
class Plan:
    """The samples of each rank at each step of each epoch.

    Args:
        num_samples: samples in the dataset.
        batch_size: samples a rank and step.
        world_size: ranks.
        seed: any whole number.
        shuffle: False, "full", "window", or True: "window" if `shard_sizes` is given, else "full".
        remainder: "drop", "pad" or "uneven", see `Partition`.
        shard_sizes: samples a shard, in storage order.
        window_shape: lanes and window of a window shuffle; None for the defaults.
        epoch_size: positions in a virtual epoch; None for epochs of `num_samples`.
        sampler: a custom order, in place of shuffle, seed, shard_sizes and epoch_size: a
            `Sampler`, or an array of ids in [0, num_samples).
        start: the position to resume from, see `resumed`.
        batch_by: buckets of neighbours in length over that order; see `sw.buckets`. With a budget
            `batch_size` is the most samples that a batch may have.
        exclude: ids of samples that are left out; see `shardwise.DataLoader`.
        global_batch_size: in place of `batch_size`: samples a step over all ranks.
        balance: what each sample costs, to deal global batches by; see `shardwise.plan.balance`.

    Pure and safe in threads; pickles small.

    >>> plan = Plan(10, batch_size=2, world_size=2)
    >>> plan.num_steps, plan.indices(0, 1, rank=0)
    (2, array([4, 5]))
    """

    _base: Partition
    _costs: NDArray[np.float64] | None = None
    fingerprint = ""  # of the data, if they are not all that the dataset has now

    def __init__(
        self,
        num_samples: SupportsIndex,
        *,
        batch_size: SupportsIndex = DEFAULT_BATCH_SIZE,
        world_size: SupportsIndex = 1,
        seed: SupportsIndex = 0,
        shuffle: Shuffle = False,
        remainder: Remainder = "drop",
        shard_sizes: Sequence[int] | NDArray[np.int64] | SizesView | None = None,
        window_shape: WindowShape | None = None,
        epoch_size: SupportsIndex | None = None,
        sampler: Sampler | None = None,
        start: SupportsIndex = 0,
        batch_by: BatchBy | None = None,
        exclude: NDArray[Any] | None = None,
        global_batch_size: SupportsIndex | None = None,
        balance: ArrayLike | None = None,
    ) -> None:
        num_ids = whole("num_samples", num_samples, least=0)
        given, is_users = as_sampler(sampler, whole("seed", seed)), sampler is not None
        if given is not sampler:
            sampler, seed = given, 0
        if sampler is None:
            sampler = make_sampler(
                num_ids,
                shuffle=shuffle,
                seed=whole("seed", seed),
                shard_sizes=shard_sizes,
                window_shape=window_shape,
                epoch_size=epoch_size,
            )
        else:
            check_sampler(sampler, num_ids)
            options = {"shuffle": shuffle or None, "seed": seed or None, "epoch_size": epoch_size}
            refuse_options(sampler, has_sizes=shard_sizes is not None, **options)
            seed = seed_of(sampler)
        order = Order(sampler, num_ids, is_users)
        fixed_size = None
        if global_batch_size is not None:
            fixed_size = whole("global_batch_size", global_batch_size, least=1)
            if type(batch_size) is not Default:
                both = f"batch_size={batch_size} and global_batch_size={fixed_size}"
                raise ValueError(f"{both}, of a rank and of all ranks: leave one of them out")
        batch_size = whole("batch_size", batch_size, least=1)
        world_size = whole("world_size", world_size, least=1)
        if batch_by is not None:
            if having(batch_by, BatchBy) is None:
                raise TypeError(f"batch_by={batch_by!r:.80}: use sw.buckets(...)")
            batch_size = batch_by.rows(batch_size, fixed_size=fixed_size)
        base = Partition(0, batch_size, world_size, remainder, fixed_size=fixed_size)
        if batch_by is not None:
            rows = base.global_batch_size
            order = order.cut_by(batch_by, rows=rows, seed=whole("seed", seed))
        if exclude is not None:
            order = replace(order, excluded=Excluded.of(exclude, num_ids))
        self.epoch = 0
        self._compose(order, base)
        if balance is not None:
            is_cut = batch_ends(order.sampler, 0) is not None
            self._costs = checked_costs(balance, num_ids, is_cut=is_cut)
        self._base = replace(self._base, start=whole("start", start))

    @property
    def partition(self) -> AnyPartition:
        """The division of the positions of `epoch` among ranks."""
        return self._partition_of(self.epoch)

    @property
    def sampler(self) -> Sampler:
        """The order of the samples, for the global batches that it is made for."""
        return self.order.sampler

    @property
    def num_samples(self) -> int:
        """Positions in an epoch: a virtual epoch's, where there are such."""
        return self._base.num_samples

    @property
    def batch_size(self) -> int:
        """Samples a rank and step; under a budget the most that there may be."""
        return self._base.batch_size

    @property
    def world_size(self) -> int:
        """The number of ranks that share a global batch."""
        return self._base.world_size

    @property
    def global_batch_size(self) -> int:
        """Samples a step, over all ranks; under a budget the most that there may be."""
        return self._base.global_batch_size

    @property
    def rows_dealt(self) -> int:
        """Rows that are computed for one step of one rank: under `balance` those of all ranks."""
        return self.batch_size if self._costs is None else self.global_batch_size

    @property
    def remainder(self) -> Remainder:
        """The treatment of samples that don't fill a global batch."""
        return self._base.remainder

    @property
    def start(self) -> int:
        """The position that step 0 starts at."""
        return self._base.start

    @property
    def order_size(self) -> int:
        """The global batch that the order is made for: another one only after a resume."""
        return self.order.global_batch

    @property
    def has_even_steps(self) -> bool:
        """Whether all steps have `global_batch_size` samples, but the last: not under a budget."""
        return self.partition.has_even_steps

    @property
    def num_steps(self) -> int:
        """Batches of each rank from `start` on. It differs by epoch under a budget: `resumed`."""
        return self.partition.num_steps

    @property
    def num_dropped(self) -> int:
        """Samples from `start` on that no rank yields."""
        return self.partition.num_dropped

    @property
    def num_padded(self) -> int:
        """Rows over all ranks that repeat a sample to fill the last batch."""
        return self.partition.num_padded

    def positions(self, epoch: int, steps: range, rank: int) -> Rows:
        """One rank's positions at these steps, and which of them count: see `Partition.block`."""
        return self._partition_of(epoch).block(steps, rank)

    def batches(self, epoch: int, steps: range, rank: int) -> Iterator[Rows]:
        """One rank's `(ids, valid)` at each of some ascending steps, as views of one block."""
        positions, valid = self.positions(epoch, steps, rank)
        ids, begin = self.ids(epoch, positions), 0
        for end in self._partition_of(epoch).row_ends(steps, rank).tolist():
            yield ids[begin:end], valid[begin:end]
            begin = end

    def position_after(self, num_batches: int) -> int:
        """The position of `epoch` after some batches from `start` on."""
        return self.partition.position_after(num_batches)

    def indices(self, epoch: int, step: int, rank: int) -> NDArray[np.int64]:
        """One rank's sample ids at one step, int64 `[k]`; the caller's own.

        k is `batch_size`, or one less where shares differ; in the last step of "uneven" any less.

        Raises:
            ValueError: the epoch, step or rank does not exist.
        """
        return self._rows(epoch, step, rank)[0].copy()

    def valid(self, epoch: int, step: int, rank: int) -> NDArray[np.bool_]:
        """The rows of `indices` that are samples, bool `[k]`; the others only fill a batch."""
        return self._rows(epoch, step, rank)[1].copy()

    def resumed(self, position: SupportsIndex, *, epoch: SupportsIndex | None = None) -> Plan:
        """The plan of what is left of an epoch from `position` on: its step 0 starts there.

        `epoch` is the one that `num_steps` and the other counts are of; None for this plan's.
        """
        epoch = self.epoch if epoch is None else whole("epoch", epoch, least=0)
        return self._replace(epoch=epoch, start=whole("start", position))

    def of_epoch(self, epoch: int | None = None) -> Plan:  # noqa: ARG002
        """The plan that an epoch follows; for None, later ones. Data that grow have two."""
        return self

    def in_order_of(self, state: Mapping[str, Any]) -> Plan:
        """This plan in the order of a loader's state, made for that one's global batches."""
        spec = state.get("order") if isinstance(state, Mapping) else None
        order = self.order.of_state(spec, size=self.global_batch_size)
        return self if order is self.order else self._replace(order=order)

    def divided(self, world_size: SupportsIndex) -> Plan:
        """The plan of the same order and batch size for this number of ranks."""
        if world_size == self.world_size:
            return self
        return self._replace(world_size=whole("world_size", world_size))

    def excluding(self, excluded: Excluded | None, *, removed: Excluded | None = None) -> Plan:
        """The plan of the same order with these samples left out, replacing earlier exclusions."""
        order = replace(self.order, excluded=excluded, removed=removed or self.order.removed)
        is_same = removed is None and excluded is self.order.excluded
        return self if is_same else self._replace(order=order)

    def last_positions(self, count: int) -> NDArray[np.int64]:
        """The last positions of `epoch` that are not left out, int64 `[count]`."""
        partition = self.partition
        if isinstance(partition, RestPartition):
            return partition.last(count)
        return np.arange(self.num_samples - count, self.num_samples)

    def padded(self) -> Plan:
        """The plan that fills the last batch with repeats, whatever its `remainder`."""
        return self._replace(remainder="pad")

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at some positions of an epoch, int64 `[k]`."""
        ids = self.sampler.indices(epoch, positions)
        if self.order.is_users:
            check_ids(self.sampler, ids, len(positions), self.order.num_ids)
        return ids

    def require_steps(self) -> Plan:
        """This plan, if it has a batch for each rank.

        Raises:
            ValueError: it has none.
        """
        if self.num_steps:
            return self
        raise ValueError(no_batch_reason(self.order, self._base, self.has_even_steps))

    def _replace(
        self, *, order: Order | None = None, epoch: int | None = None, **changes: Any
    ) -> Plan:
        """This plan with another order, epoch, or other values of its partition."""
        plan = copy.copy(self)
        plan.epoch = self.epoch if epoch is None else epoch
        plan._compose(order or self.order, replace(self._base, **changes))
        return plan

    def _compose(self, order: Order, base: Partition) -> None:
        """Take an order and a partition, each with what it needs to know of the other."""
        self.order = order = order.for_global_batch(base.global_batch_size)
        count, lanes = order.sampler.num_samples, lanes_of(order.sampler)
        if (count, lanes) != (base.num_samples, base.lanes):
            base = replace(base, num_samples=count, lanes=lanes)
        self._base = base
        self._partitions: LastValues[int, AnyPartition] = LastValues()
        self._kept_rows: LastValues[tuple[int, int, int, int], list[Rows]] = LastValues(1)

    def _partition_of(self, epoch: int) -> AnyPartition:
        return self._partitions.get(epoch, self._cut_epoch)

    def _cut_epoch(self, epoch: int) -> AnyPartition:
        base, costs = replace(self._base, shift=first_lane_of(self.sampler, epoch)), self._costs
        if costs is not None:
            base = replace(base, costs=lambda positions: costs[self.ids(epoch, positions)])
        return cut(self.order, base, epoch)

    def _rows(self, epoch: int, step: int, rank: int) -> Rows:
        """A step's rows out of the block of steps that is kept."""
        epoch, step, rank = whole("epoch", epoch, least=0), whole("step", step), whole("rank", rank)
        num_steps = self._partition_of(epoch).num_steps
        if not 0 <= step < num_steps:
            raise ValueError(f"step={step} is not in an epoch of {num_steps} steps")
        length = max(1, _BLOCK_ROWS // self.rows_dealt)
        first = step - step % length
        stop = min(first + length, num_steps)
        rows = self._kept_rows.get((epoch, first, stop, rank), self._block)
        return rows[step - first]

    def _block(self, key: tuple[int, int, int, int]) -> list[Rows]:
        epoch, first, stop, rank = key
        return list(self.batches(epoch, range(first, stop), rank))

    def _repr_html_(self) -> str:
        names = ("num_samples", "batch_size", "world_size", "remainder", "start", "num_steps")
        counts = ("num_dropped", "num_padded", "sampler")
        return table("Plan", [(name, getattr(self, name)) for name in (*names, *counts)])

    def __repr__(self) -> str:
        return (
            f"Plan({self.num_samples} samples, batch_size={self.batch_size}, "
            f"world_size={self.world_size}, remainder={self.remainder!r}, "
            f"{self.num_steps} steps from {self.start} on, {self.sampler!r})"
        )
