"""Indices for torch's own DataLoader over any map-style dataset: one by one, or in batches.

Both samplers walk the plan's order, so that all ranks take equal steps (I2) through one global
order (I3), with a state that any number of ranks takes up (I4). They run in the main process: the
number of loader workers and their start method mean nothing to them. Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from shardwise.engine.batch.schedule import epoch_works
from shardwise.loader.rank_check import HeldRanks
from shardwise.loader.remainder import DropNotice, default_remainder
from shardwise.plan import Partition, Plan, Remainder, Sampler, Shuffle, make_sampler
from shardwise.torch.order import Cursor, check_count, order_of, refuse_second_division, shuffle_of

__all__ = ["BatchSampler", "DistributedSampler"]

# Indices that are computed at a time: a numpy call costs as much as some thousand of them.
_BLOCK = 8192


class DistributedSampler(torch.utils.data.DistributedSampler[int]):
    """torch's DistributedSampler, exact: one rank's indices, in an order that no rank count moves.

    Args:
        dataset: anything with a length. The shuffle and the fingerprint of a `shardwise.Dataset`
            are used.
        num_replicas: how many ranks share the data; found, together with rank, when both are
            None.
        rank: this process's rank.
        shuffle: True (the way that suits the dataset, "full" if it doesn't say), False, "full"
            or "window".
        seed: makes another order.
        drop_last: leave out what does not fill all ranks, instead of repeating samples for it.
        group: a process group or one dimension of a device mesh to take the ranks from.

    Rank r gets every num_replicas-th index from the r-th on. All ranks get `len(sampler)` of them.
    With drop_last=False the last ones of some ranks may be repeats: `num_padded` is their number
    over all ranks, `valid` says which they are here, so that an evaluation can leave them out.

    As with torch's, an epoch is read in the same order until `set_epoch` names another.

    Raises:
        ValueError: an option is not usable.
        RankError: rank and world size can't be told for certain.

    Examples:
        >>> sampler = DistributedSampler(range(10), num_replicas=4, rank=3, shuffle=False)
        >>> list(sampler), sampler.valid.tolist(), sampler.num_padded
        ([3, 7, 1], [True, True, False], 2)
    """

    def __init__(  # noqa: PLR0917 - torch's signature
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: Shuffle = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        group: Any = None,
    ) -> None:
        self._ranks = HeldRanks(rank, num_replicas, group=group)
        ranks = self._ranks.now()
        # torch's constructor only sets attributes, which frameworks read.
        super().__init__(
            dataset,  # type: ignore[arg-type]
            num_replicas=ranks.world_size,
            rank=ranks.rank,
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=drop_last,
        )
        num_samples = len(dataset)
        kind, shard_sizes = shuffle_of(dataset, shuffle, None)
        sampler = make_sampler(
            num_samples,
            shuffle=kind,
            seed=seed,
            shard_sizes=shard_sizes,
            window_shape=getattr(dataset, "window_shape", None),
        )
        self._order = order_of(dataset, sampler)
        # One index a step, so that nothing but the ranks must be filled.
        self._partition = Partition(
            num_samples,
            1,
            ranks.world_size,
            "drop" if drop_last else "pad",
            lanes=getattr(sampler, "lanes", 1),
        )
        self._cursor = Cursor()

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices of the epoch, from where a loaded state stands."""
        refuse_second_division(self, self._ranks.certain().world_size)
        cursor = self._cursor = self._cursor.again()
        return self._indices(cursor)

    def __len__(self) -> int:
        """Indices of this rank in a whole epoch: the same on every rank, and after a resume."""
        self._settle()
        return self._partition.num_steps

    @property
    def num_padded(self) -> int:
        """Repeated indices in a whole epoch, over all ranks."""
        self._settle()
        return self._partition.num_padded

    @property
    def num_dropped(self) -> int:
        """Samples that a whole epoch leaves out, over all ranks."""
        self._settle()
        return self._partition.num_dropped

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Bool, one for each index: False where it is a repeat.

        Of the newest iterator; before there is one, of the one to come.
        """
        left = self._left(self._cursor)
        if not left.num_steps:
            return np.empty(0, dtype=np.bool_)
        return left.block(range(left.num_steps), self.rank)[1]

    @property
    def num_left(self) -> int:
        """Indices that the next iterator yields."""
        return self._left(self._cursor.again()).num_steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the one that a loaded state stands in goes on."""
        refuse_second_division(self, self.num_replicas)
        self._cursor = self._cursor.moved_to(epoch)
        self.epoch = self._cursor.epoch

    def state_dict(self, num_samples: int | None = None) -> dict[str, Any]:
        """The position after some samples of the pass under way: JSON, equal on all ranks.

        Args:
            num_samples: how many samples of this rank the program has taken since
                `iter(loader)`. None counts the indices that were yielded: with workers,
                DataLoader takes them ahead of the program, prefetch_factor batches a worker.

        Raises:
            ValueError: num_samples is not in [0, what is left of the epoch].
        """
        cursor = self._cursor
        num_samples = cursor.num_given if num_samples is None else num_samples
        count = self._left(cursor).num_steps
        check_count("num_samples", num_samples, count, cursor)
        if 0 < num_samples == count:
            return self._order.state(cursor.epoch + 1, 0).to_dict()
        position = cursor.start + num_samples * self.num_replicas
        return self._order.state(cursor.epoch, position).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator go on where a state was taken, on any number of ranks.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        self._cursor = Cursor.at(self._order.read(state))
        self.epoch = self._cursor.epoch

    def _indices(self, cursor: Cursor) -> Iterator[int]:
        left = self._left(cursor)
        cursor.is_whole = not left.num_steps
        for first in range(0, left.num_steps, _BLOCK):
            last = min(first + _BLOCK, left.num_steps)
            positions, _ = left.block(range(first, last), self.rank)
            for index in self._order.sampler.indices(cursor.epoch, positions).tolist():
                cursor.give(left.num_steps)
                yield index

    def _settle(self) -> None:
        """Take over the ranks of this process, where torch's attributes are read, too."""
        ranks = self._ranks.now()
        if (ranks.rank, ranks.world_size) != (self.rank, self.num_replicas):
            self.rank, self.num_replicas = ranks.rank, ranks.world_size
            self._partition = replace(self._partition, world_size=ranks.world_size)
            self.num_samples = self._partition.num_steps
            self.total_size = self.num_samples * self.num_replicas

    def _left(self, cursor: Cursor) -> Partition:
        """What is left of the epoch from where the cursor began."""
        self._settle()
        return replace(self._partition, start=cursor.start)


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of indices of one rank, for `DataLoader(dataset, batch_sampler=...)`.

    Args:
        dataset: anything with a length, or the number of samples.
        batch_size: samples a rank in each batch.
        shuffle: False, True (the way that suits the dataset, "full" if it doesn't say), "full" or
            "window".
        seed: makes another order.
        sampler: an order of your own, as in `shardwise.DataLoader`.
        remainder: "drop"; "pad" repeats samples, see `valid`; "uneven" gives each sample exactly
            once, and the last batch of some ranks is shorter, possibly an empty list, which
            DataLoader's default `collate_fn` does not take. None is "uneven" where nothing is
            shuffled, and no batch is empty; and "drop" where it is, with a line in the log on
            rank 0 if that leaves samples out.
        rank: this process's rank; found, together with world_size, when both are None.
        world_size: how many ranks share the data.
        group: a process group or one dimension of a device mesh to take both from.
        shard_sizes: samples a shard, for shuffle="window"; the dataset's own if it has some.
        epoch_size: samples in an epoch, over all ranks, where that is not all samples.

    The batches hold the samples of `shardwise.DataLoader` with the same options, in that order.
    An epoch is read in the same order until `set_epoch` names another.

    Raises:
        ValueError: an option is not usable, or no rank would get a single batch.
        RankError: rank and world size can't be told for certain.

    Examples:
        >>> list(BatchSampler(10, 2, rank=1, world_size=2))
        [[2, 3], [6, 7], [9]]
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        sampler: Sampler | None = None,
        remainder: Remainder | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        shard_sizes: Sequence[int] | NDArray[np.int64] | None = None,
        epoch_size: int | None = None,
    ) -> None:
        self._ranks = HeldRanks(rank, world_size, group=group)
        self._is_default = remainder is None
        self._drop_notice = DropNotice(is_default=self._is_default)
        remainder = remainder or default_remainder(shuffle, sampler)
        num_samples = dataset if isinstance(dataset, int) else len(dataset)
        kind, shard_sizes = shuffle_of(dataset, shuffle, shard_sizes)
        self.batch_size = batch_size
        self.drop_last = remainder == "drop"
        self._plan = Plan(
            num_samples,
            batch_size=batch_size,
            world_size=self._ranks.now().world_size,
            seed=seed,
            shuffle=kind,
            remainder=remainder,
            shard_sizes=shard_sizes,
            window_shape=getattr(dataset, "window_shape", None),
            epoch_size=epoch_size,
            sampler=sampler,
        ).require_steps()
        self._check_empty(self._plan)
        self._order = order_of(dataset, self._plan.sampler)
        self._cursor = Cursor()

    @property
    def plan(self) -> Plan:
        """Who gets what, of the ranks of this process."""
        self._plan = self._plan.divided(self.world_size)
        return self._plan

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._ranks.certain().rank

    @property
    def world_size(self) -> int:
        """How many ranks share the data."""
        return self._ranks.now().world_size

    def __len__(self) -> int:
        """Batches in an epoch on this rank: the same on every rank, and after a resume."""
        return self.plan.num_steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches of the epoch, from where a loaded state stands."""
        plan, rank = self.plan, self.rank
        refuse_second_division(self, plan.world_size)
        self._drop_notice.say(plan, rank)
        cursor = self._cursor = self._cursor.again()
        plan = plan.resumed(cursor.start)
        self._check_empty(plan)
        return self._batches(cursor, plan, rank)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator goes through."""
        return self._cursor.epoch

    @property
    def num_left(self) -> int:
        """Batches that the next iterator yields."""
        return self.plan.resumed(self._cursor.again().start).num_steps

    @property
    def sampler(self) -> BatchSampler:
        """This object: frameworks look for `batch_sampler.sampler.set_epoch`."""
        return self

    def valid(self, step: int) -> NDArray[np.bool_]:
        """Bool, one for each index of a step of the whole epoch: False where it is a repeat."""
        return self.plan.valid(self.epoch, step, self.rank)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the one that a loaded state stands in goes on."""
        refuse_second_division(self, self.world_size)
        self._cursor = self._cursor.moved_to(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """The position after some batches of the pass under way: JSON, equal on all ranks.

        Args:
            num_batches: how many batches the program has taken since `iter(loader)`. None counts
                the batches that were yielded: with workers, DataLoader takes them ahead of the
                program, prefetch_factor a worker.

        Raises:
            ValueError: num_batches is not in [0, batches left in the epoch].
        """
        cursor = self._cursor
        num_batches = cursor.num_given if num_batches is None else num_batches
        plan = self.plan.resumed(cursor.start)
        check_count("num_batches", num_batches, plan.num_steps, cursor)
        if 0 < num_batches == plan.num_steps:
            return self._order.state(cursor.epoch + 1, 0).to_dict()
        position = cursor.start + num_batches * plan.global_batch_size
        return self._order.state(cursor.epoch, position).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator go on where a state was taken, with any ranks and batch size.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        self._cursor = Cursor.at(self._order.read(state))

    def _check_empty(self, plan: Plan) -> None:
        """By default no rank gets an empty list, which torch's `collate_fn` fails on."""
        left = (plan.num_samples - plan.start) % plan.global_batch_size
        if self._is_default and plan.remainder == "uneven" and 0 < left < plan.world_size:
            raise ValueError(
                f"the last step has {left} of {plan.num_samples} samples for world_size="
                f"{plan.world_size}, so that some ranks get none, which torch's collate_fn does "
                "not take: pass remainder='pad' (see valid) or 'drop', another batch_size, or "
                "remainder='uneven' with a collate_fn that takes an empty list"
            )

    @staticmethod
    def _batches(cursor: Cursor, plan: Plan, rank: int) -> Iterator[list[int]]:
        cursor.is_whole = not plan.num_steps
        for work in epoch_works(plan, epoch=cursor.epoch, rank=rank):
            cursor.give(plan.num_steps)
            yield work.ids.tolist()
