"""torch's DataLoader with a state: it counts what it gave, the dataset or sampler knows the order.

The state is a position in the global order (I4), so that any number of ranks and workers takes it
up. torchdata's class of this name keeps a state of each worker instead, for as many workers only.
Imports torch and the parts beside this one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch.utils.data

from shardwise.frameworks import announced
from shardwise.plan import Plan, Remainder
from shardwise.torch.iterable import IterableDataset
from shardwise.torch.parcels import HandOver
from shardwise.torch.samplers import BatchSampler, DistributedSampler

__all__ = ["StatefulDataLoader"]


class StatefulDataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader around an `IterableDataset`, `BatchSampler` or `DistributedSampler`.

    Args:
        dataset: an `IterableDataset` of this package, with `batch_size=None`; or any map-style
            dataset, with one of the samplers as `batch_sampler=` or `sampler=`.
        args: torch's own.
        kwargs: torch's own.

    Iterating again after the end begins the next epoch; before the end, the same one again.

    Raises:
        TypeError: none of the three is there, so that there is no order to keep a place in.

    Example:
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
        if not isinstance(self.collate_fn, HandOver):
            self.collate_fn = HandOver(self.collate_fn)
        self._num_given = 0
        self._keeper: IterableDataset | BatchSampler | DistributedSampler
        for keeper in (dataset, self.batch_sampler, self.sampler):
            if isinstance(keeper, (IterableDataset, BatchSampler, DistributedSampler)):
                self._keeper = keeper
                if isinstance(keeper, IterableDataset):
                    keeper.is_announced = True
                return
        raise TypeError(
            f"{type(dataset).__name__} with sampler={self.sampler!r}: give a "
            "shardwise.torch.IterableDataset, or a BatchSampler or DistributedSampler of it"
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Go through the epoch from where it stands."""
        return announced(self._batches(), lambda: self._pass_plan, is_known=True)

    def _batches(self) -> Generator[Any, None, None]:
        self._num_given = 0
        self._pass_plan = self._plan_left()
        for batch in super().__iter__():
            self._num_given += 1
            yield batch
        self.set_epoch(self.epoch + 1)

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._keeper.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; the one that a loaded state stands in goes on."""
        if epoch != self.epoch:
            self._num_given = 0
        self._keeper.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches handed out: JSON, under 1 KB, equal on all ranks."""
        if isinstance(self._keeper, DistributedSampler):
            num_samples = self._num_given * (self.batch_size or 1)
            # The last batch may be shorter.
            return self._keeper.state_dict(min(num_samples, self._keeper.num_left))
        return self._keeper.state_dict(self._num_given)

    def _plan_left(self) -> Plan:
        """The plan of the pass that begins, where there is one; else as many batches."""
        keeper = self._keeper
        if not isinstance(keeper, DistributedSampler):
            return keeper.plan.resumed(self.state_dict()["position"])
        remainder: Remainder = "drop" if self.drop_last else "uneven"
        return Plan(keeper.num_left, batch_size=self.batch_size or 1, remainder=remainder)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any ranks, workers and batch size.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        self._keeper.load_state_dict(state)
        self._num_given = 0
