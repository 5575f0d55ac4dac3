"""Indices for torch's own DataLoader over any map-style dataset: one by one, or in batches.

Both samplers walk the plan's order, so that all ranks take equal steps (I2) through one global
order (I3), with a state that any number of ranks takes up (I4). They run in the main process: the
number of loader workers and their start method mean nothing to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Unpack

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import check_flag, suggest_names
from shardwise.engine.batch.schedule import epoch_requests
from shardwise.loader.notices import DropNotice, EpochNotice
from shardwise.loader.plan_options import PlanArguments, PlanOptions, plan_for, takes_plan_options
from shardwise.loader.planned_order import Divided, PlannedOrder
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import Plan, Shuffle
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE
from shardwise.plan.protocol import ForGlobalBatch
from shardwise.torch.account import OrderAccount, given_rows
from shardwise.torch.order import Cursor, SamplerState, refuse_second_division

# Indices that are computed at a time: a numpy call costs as much as some thousand of them.
_BLOCK = 8192


@suggest_names
class DistributedSampler(SamplerState, torch.utils.data.DistributedSampler[int]):
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
        coverage: a local directory for `shardwise certify`, as in `shardwise.DataLoader`; it
            has the given indices, marked as such; a `StatefulDataLoader` counts the received ones.

    Rank r gets every num_replicas-th index from the r-th on. All ranks get `len(sampler)` of them.
    With drop_last=False the last ones of some ranks may be repeats: `num_padded` is their number
    over all ranks, `valid` is False for them here, so that an evaluation can leave them out.

    As with torch's, an epoch is read in the same order until `set_epoch` names another.

    Raises:
        ValueError: an option is not usable.
        RankError: rank and world size are not known for certain.

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
        coverage: str | os.PathLike[str] | None = None,
    ) -> None:
        check_flag("drop_last", drop_last)
        self._order = PlannedOrder(dataset, CurrentRanks(rank, num_replicas, group=group))
        ranks = self._order.ranks.now()
        # torch's constructor only sets attributes, which frameworks read.
        super().__init__(
            dataset,  # type: ignore[arg-type]
            num_replicas=ranks.world_size,
            rank=ranks.rank,
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=drop_last,
        )
        # One index per step, so that nothing but the ranks must be filled.
        options = PlanOptions(
            batch_size=1, shuffle=shuffle, seed=seed, remainder="drop" if drop_last else "pad"
        )
        self._plan = plan_for(dataset, options, world_size=ranks.world_size)
        if having(self._plan.sampler, ForGlobalBatch) is not None:
            raise ValueError(
                f"the order of {dataset!r:.200} depends on the batch size, which a sampler of "
                "single indices does not know: use sw.torch.BatchSampler, or sw.DataLoader"
            )
        self._cursor, self._notice = Cursor(), EpochNotice()
        self._account = OrderAccount(dataset, coverage, gives_indices=True)

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices of the epoch, from where a loaded state stands."""
        refuse_second_division(self, self._order.ranks.certain().world_size)
        cursor, rest = self._begin()
        self._account.begin(rest, epoch=cursor.epoch, rank=self.rank, progress=cursor)
        return self._indices(cursor, rest)

    def __len__(self) -> int:
        """Indices of this rank in a whole epoch: the same on every rank, and after a resume."""
        return self.plan.num_steps

    @property
    def num_padded(self) -> int:
        """Repeated indices in a whole epoch, over all ranks."""
        return self.plan.num_padded

    @property
    def num_dropped(self) -> int:
        """Samples that a whole epoch leaves out, over all ranks."""
        return self.plan.num_dropped

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Bool, one for each index: False where it is a repeat.

        Of the newest iterator; before there is one, of the one to come.
        """
        rest = self._rest(self._cursor)
        if not rest.num_steps:
            return np.empty(0, dtype=np.bool_)
        return rest.positions(self.epoch, range(rest.num_steps), self.rank)[1]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the epoch of a loaded state continues."""
        refuse_second_division(self, self.num_replicas)
        self._name(epoch)

    def state_dict(self, num_samples: int | None = None) -> dict[str, Any]:
        """The position after some samples of the pass under way: JSON, equal on all ranks.

        Args:
            num_samples: how many samples of this rank the program has taken since
                `iter(loader)`. None counts the indices that were yielded: with workers,
                DataLoader takes them ahead of the program, prefetch_factor batches per worker.

        Raises:
            ValueError: num_samples is not in [0, what is left of the epoch].
        """
        return self._state_after("num_samples", num_samples)

    def _indices(self, cursor: Cursor, rest: Plan) -> Iterator[int]:
        num_steps, check_ranks = rest.num_steps, self._order.ranks.watch()
        cursor.is_whole = not num_steps
        for first in range(0, num_steps, _BLOCK):
            steps = range(first, min(first + _BLOCK, num_steps))
            positions, valid = rest.positions(cursor.epoch, steps, self.rank)
            ids = rest.ids(cursor.epoch, positions)
            self._account.add(cursor, given_rows(ids, valid), len(ids))
            for index in ids.tolist():
                check_ranks()
                cursor.count(num_steps)
                if cursor.is_whole:
                    self._account.note(cursor, num_steps)
                yield index

    @property
    def plan(self) -> Plan:
        """The plan of a whole epoch, of the ranks of this process; so are torch's attributes."""
        ranks = self._order.ranks.now()
        if (ranks.rank, ranks.world_size) != (self.rank, self.num_replicas):
            self.rank, self.num_replicas = ranks.rank, ranks.world_size
            self._plan = self._plan.divided(ranks.world_size)
            self.num_samples = self._plan.num_steps
            self.total_size = self.num_samples * self.num_replicas
        return self._plan

    def _move(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.epoch = cursor.epoch


@takes_plan_options
class BatchSampler(Divided, SamplerState, torch.utils.data.Sampler[list[int]]):
    """Batches of indices of one rank, for `DataLoader(dataset, batch_sampler=...)`.

    Args:
        dataset: anything with a length, or the number of samples.
        batch_size: samples per rank in each batch.
        shard_sizes: samples per shard, for shuffle="window"; the dataset's own if it has some.
        **options: rank, world_size, group, coverage and the options of the order, as of
            `shardwise.DataLoader`. shuffle=True is "full" if the dataset doesn't say what suits
            it. remainder="uneven" may give an empty list, which DataLoader's default `collate_fn`
            does not take; the default gives none. A field's name in batch_by needs a dataset with
            fields. The lines of coverage have the given indices, marked as such; a
            `StatefulDataLoader` counts what the program got.

    The batches hold the samples of `shardwise.DataLoader` with the same options, in that order.
    An epoch is read in the same order until `set_epoch` names another.

    Raises:
        ValueError: an option is not usable, or no rank would get a single batch.
        RankError: rank and world size are not known for certain.

    Examples:
        >>> list(BatchSampler(10, 2, rank=1, world_size=2))
        [[2, 3], [6, 7], [9]]
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int = DEFAULT_BATCH_SIZE,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        shard_sizes: Sequence[int] | NDArray[np.int64] | None = None,
        coverage: str | os.PathLike[str] | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        chosen = PlanOptions(batch_size=batch_size, **options).of(dataset)
        self._order = PlannedOrder(dataset, CurrentRanks(rank, world_size, group=group))
        self._is_default = options.get("remainder") is None
        self._drop_notice = DropNotice(is_default=self._is_default)
        self.drop_last = chosen.effective_remainder == "drop"
        plan = plan_for(dataset, chosen, world_size=self.world_size, shard_sizes=shard_sizes)
        self._plan = plan.require_steps()
        self.batch_size = plan.batch_size
        self._check_empty(self._plan)
        self.dataset = dataset
        self._cursor, self._notice = Cursor(), EpochNotice()
        self._account = OrderAccount(dataset, coverage, gives_indices=True)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches of the epoch, from where a loaded state stands."""
        plan, rank = self.plan, self.rank
        refuse_second_division(self, plan.world_size)
        self._drop_notice.say(plan, rank)
        cursor, plan = self._begin()
        self._check_empty(plan)
        self._account.begin(plan, epoch=cursor.epoch, rank=rank, progress=cursor)
        return self._batches(cursor, plan, rank)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator goes through."""
        return self._cursor.epoch

    @property
    def sampler(self) -> BatchSampler:
        """This object: frameworks look for `batch_sampler.sampler.set_epoch`."""
        return self

    def valid(self, step: int) -> NDArray[np.bool_]:
        """Bool, one for each index of a step of the whole epoch: False where it is a repeat."""
        return self.plan.valid(self.epoch, step, self.rank)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the epoch of a loaded state continues."""
        refuse_second_division(self, self.world_size)
        self._name(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """The position after some batches of the pass under way: JSON, equal on all ranks.

        Args:
            num_batches: how many batches the program has taken since `iter(loader)`. None counts
                the batches that were yielded: with workers, DataLoader takes them ahead of the
                program, prefetch_factor per worker.

        Raises:
            ValueError: num_batches is not in [0, batches left in the epoch].
        """
        return self._state_after("num_batches", num_batches)

    def _check_empty(self, plan: Plan) -> None:
        """Refuse empty lists by default, since torch's `collate_fn` fails on them."""
        if self._is_default and plan.partition.has_empty:
            raise ValueError(
                f"the last of {plan.num_samples} samples are fewer than world_size="
                f"{plan.world_size}, so that some ranks get none, which torch's collate_fn does "
                "not take: pass remainder='pad' (see valid) or 'drop', another batch_size, or "
                "remainder='uneven' with a collate_fn that takes an empty list"
            )

    def _batches(self, cursor: Cursor, plan: Plan, rank: int) -> Iterator[list[int]]:
        num_steps, check_ranks = plan.num_steps, self._order.ranks.watch()
        cursor.is_whole = not num_steps
        for request in epoch_requests(plan, epoch=cursor.epoch, rank=rank):
            check_ranks()
            cursor.count(num_steps)
            self._account.add(cursor, given_rows(request.ids, request.valid))
            if cursor.is_whole:
                self._account.note(cursor, num_steps)
            yield request.ids.tolist()
