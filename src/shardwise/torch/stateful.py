"""torch's DataLoader with a state: it counts batches, its dataset or sampler knows the order.

The state is a position in the global order (I4), so that any number of ranks and workers takes it
up. torchdata's class of this name keeps a state of each worker instead, for as many workers only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.loader.frameworks import batches_for_frameworks
from shardwise.loader.notices import EpochNotice
from shardwise.loader.plan_options import Grown
from shardwise.loader.planned_order import from_checkpoint
from shardwise.plan import LoaderState, Plan
from shardwise.tensors.torch_dataloader import PositionedLoader
from shardwise.torch.iterable import IterableDataset
from shardwise.torch.samplers import BatchSampler, DistributedSampler
from shardwise.torch.shared_batches import SharedMemoryCollate


@dataclass(slots=True, eq=False)
class _Pass:
    """One pass: the state that it began with, its steps, and its batches: all, and those given."""

    began: dict[str, Any]
    num_left: int
    num_steps: int
    num_yielded: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all batches were returned; the end need not have been requested."""
        return self.num_yielded >= self.num_steps


class StatefulDataLoader(PositionedLoader):
    """torch's DataLoader around an `IterableDataset`, `BatchSampler` or `DistributedSampler`.

    Args:
        dataset: an `IterableDataset` of this package, with `batch_size=None`; or any map-style
            dataset, with one of the samplers as `batch_sampler=` or `sampler=`.
        args: torch's own.
        kwargs: torch's own.

    Iterating again after the end starts the next epoch, also if the last batch was taken but not
    the end requested; before the end, it starts the same epoch again.

    Raises:
        TypeError: none of the three is given, so that no order has a position to keep.

    Examples:
        >>> sampler = BatchSampler(range(6), 2)
        >>> loader = StatefulDataLoader(range(6), batch_sampler=sampler)
        >>> for batch in loader:
        ...     state = loader.state_dict()
        ...     break
        >>> loader.load_state_dict(state)
        >>> [batch.tolist() for batch in loader]
        [[2, 3], [4, 5]]
    """

    # Accelerate would divide it once more, if it did not take it for its own.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(dataset, *args, **kwargs)
        if not isinstance(self.collate_fn, SharedMemoryCollate):
            self.collate_fn = SharedMemoryCollate(self.collate_fn)
        self._pass: _Pass | None = None
        self._notice = EpochNotice()
        self._stateful: IterableDataset | BatchSampler | DistributedSampler
        for stateful in (dataset, self.batch_sampler, self.sampler):
            if isinstance(stateful, (IterableDataset, BatchSampler, DistributedSampler)):
                self._stateful = stateful
                return
        raise TypeError(
            f"{type(dataset).__name__} with sampler={self.sampler!r}: give a "
            "shardwise.torch.IterableDataset, or a BatchSampler or DistributedSampler of it"
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate the epoch from its current position."""
        return batches_for_frameworks(self._batches(), lambda: self._pass_plan, is_known=True)

    def _batches(self) -> Generator[Any, None, None]:
        self._end_if_whole()
        stateful, num_left = self._stateful, 0
        if self._pass is not None and self._is_under_way:
            num_left = self._pass.num_yielded
            # A pass that was left starts again where it started, however far workers read ahead.
            self._stateful.load_state_dict(self._pass.began)
        else:
            self._stateful.set_epoch(self._stateful.epoch)
        plan, rank = stateful.plan, stateful._order.rank
        self._notice.begin(plan, stateful.epoch, rank, num_repeated=num_left)
        num_left = self._stateful.num_left
        run = _Pass(self._stateful.state_dict(0), num_left, self._num_batches(num_left))
        self._pass, self._pass_plan = run, self._plan_of(run)
        account = self._stateful._account
        account.is_counted = self._has_ids or not isinstance(self._stateful, IterableDataset)
        try:
            yield from self._count_batches(run, super().__iter__())
        finally:
            if self._pass in (run, None):
                account.is_counted = False
        run.num_steps = run.num_yielded
        if self._pass is run:
            self._end_if_whole()

    def _count_batches(self, run: _Pass, batches: Iterator[Any]) -> Generator[Any, None, None]:
        account, has_ids = self._stateful._account, self._has_ids
        if has_ids:
            # Workers have copies of the dataset, which count nothing.
            rank, epoch = self._stateful.rank, run.began["epoch"]
            account.begin(self._pass_plan, epoch=epoch, rank=rank, progress=run)
        check_ranks = self._stateful._order.ranks.watch()
        for batch in batches:
            check_ranks()
            run.num_yielded += 1
            if has_ids:
                account.add(run, batch.rows)
            if self._pass is run:
                account.count(self._num_taken(run))
            yield batch.data if has_ids else batch

    def _num_batches(self, num_left: int) -> int:
        """Batches of this many steps of the dataset or sampler."""
        if not isinstance(self._stateful, DistributedSampler):
            return num_left
        size = self.batch_size or 1
        return num_left // size if self.drop_last else -(-num_left // size)

    def _num_taken(self, run: _Pass) -> int:
        """Steps of the dataset or sampler that are in the returned batches."""
        if not isinstance(self._stateful, DistributedSampler):
            return run.num_yielded
        return min(run.num_yielded * (self.batch_size or 1), run.num_left)

    @property
    def _refuses_skips(self) -> bool:  # type: ignore[override]
        """Whether skips are refused; a sampler at an epoch's start allows them."""
        return self._has_ids or self._num_batches(self._stateful.num_left) < len(self)

    @property
    def _has_ids(self) -> bool:
        """Whether each batch comes with its sample ids."""
        return isinstance(self._stateful, IterableDataset) and self.batch_size is None

    @property
    def _is_under_way(self) -> bool:
        """Whether the last pass is of the epoch set last: frameworks set it themselves."""
        return self._pass is not None and self._pass.began["epoch"] == self._stateful.epoch

    def _end_if_whole(self) -> None:
        """Move on to the next epoch: a program that counts steps never requests the end."""
        if self._pass is not None and self._pass.is_whole:
            if self._is_under_way:
                self._stateful.set_epoch(self._stateful.epoch + 1)
            self._pass = None

    @property
    def total_batch_size(self) -> int:
        """Samples of a step over all ranks, under the name that Accelerate's loaders have."""
        plan = self._stateful.plan
        return self.batch_size * plan.world_size if self.batch_size else plan.global_batch_size

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._stateful.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the epoch of a loaded state continues.

        So does the one under way; one whose last batch was returned starts again.
        """
        self._end_if_whole()
        if epoch != self.epoch:
            self._pass = None
            self._stateful.set_epoch(epoch)
        self._notice.set(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The position after the returned batches: JSON, under 1 KB, equal on all ranks.

        With `coverage=` of the dataset or sampler it also writes what this rank returned since
        the last line, so call it on every rank.
        """
        if self._pass is None or not self._is_under_way:
            return self._stateful.state_dict(0)
        self._stateful._account.write()
        if self._pass.is_whole:
            stateful = self._stateful
            return stateful._order.state(stateful.plan, stateful.epoch + 1, 0)
        return self._stateful.state_dict(self._num_taken(self._pass))

    def certificate(self) -> dict[str, Any]:
        """Compare the batches of the newest pass with the plan: a proof, or what differs.

        As `shardwise.DataLoader.certificate`. For an `IterableDataset` it counts the samples in the
        returned batches; for a sampler the indices that it gave for them.
        """
        return self._stateful.certificate()

    def _plan_of(self, run: _Pass) -> Plan:
        stateful = self._stateful
        if isinstance(stateful, DistributedSampler):
            # Its plan is of indices, not of batches, and its repeats don't stand last in a gather.
            return Plan(run.num_steps, batch_size=1)
        return stateful.plan.resumed(run.began["position"], epoch=run.began["epoch"])

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Grown = None) -> None:
        """Continue where a state was taken, as `shardwise.DataLoader`, with any number of workers.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        self._stateful.load_state_dict(state, grown=grown)
        loaded = LoaderState.from_dict(from_checkpoint(state)).in_next_epoch()
        if loaded.epoch != self._stateful.epoch:
            self._stateful.load_state_dict(loaded.to_dict(), grown=grown)
        self._pass = None
