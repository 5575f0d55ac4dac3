"""The account of an `IterableDataset` or a sampler: what it gave in a pass, compared with the plan.

torch's loader takes batches ahead of the program. A sampler counts what it gives, and leaves out
what lies after the batches that the program reports. Batches of worker processes are counted by the
`StatefulDataLoader` that returns them, to which their sample ids travel with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.request import BatchRows
from shardwise.loader.account import Account
from shardwise.loader.position import Pass
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import Plan

NOT_COUNTED = (
    "worker processes read this dataset ahead of the program, and torch's DataLoader does not say "
    "which of their batches it got: use shardwise.torch.StatefulDataLoader for coverage= and "
    "certificate(), or num_workers=0"
)


class Progress(Protocol):
    """A pass under way, as its owner knows it."""

    @property
    def num_yielded(self) -> int:
        """Steps of this pass that were yielded."""


class CountedBatch(NamedTuple):
    """A batch on its way from a worker, and its samples as bytes: cheaper to pickle than arrays.

    Attributes:
        data: the batch.
        ids, skipped, replaced: the bytes of the arrays of `BatchRows`, int64.
        num_padded: rows that only fill the batch.
    """

    data: Any
    ids: bytes
    skipped: bytes
    replaced: bytes
    num_padded: int

    @classmethod
    def of(cls, data: Any, rows: BatchRows) -> CountedBatch:
        """A batch and its samples."""
        ids = (rows.ids.tobytes(), rows.skipped.tobytes(), rows.replaced.tobytes())
        return cls(data, *ids, rows.num_padded)

    @property
    def rows(self) -> BatchRows:
        """The ids of its samples, with skipped and replaced ones apart."""
        ids = np.frombuffer(self.ids, np.int64)
        if not (self.skipped or self.replaced):
            return BatchRows(ids, num_padded=self.num_padded)
        skipped, replaced = (np.frombuffer(b, np.int64) for b in (self.skipped, self.replaced))
        return BatchRows(ids, skipped, replaced, self.num_padded)


class OrderAccount:
    """The account of the newest pass through an order.

    Args:
        dataset: what the order is of, or its number of samples.
        directory: the coverage directory; None for none.
        gives_indices: whether its owner is a sampler, from which torch's loader takes ahead.

    Attributes:
        writes: whether there is a directory.
        is_counted: whether a `StatefulDataLoader` is iterating, which counts what the program has;
            for other loaders, what was yielded counts as returned.
        is_loaders: whether the newest pass is.
    """

    def __init__(
        self,
        dataset: Sized | int,
        directory: str | os.PathLike[str] | None,
        *,
        gives_indices: bool = False,
    ) -> None:
        self._gives_indices = gives_indices
        self._account = Account(dataset, directory)
        self._pass: Pass | None = None
        self._progress: Progress | None = None
        self.is_loaders = False
        self.writes = directory is not None
        self.is_counted = False

    def begin(self, plan: Plan, *, epoch: int, rank: int, progress: Progress) -> None:
        """Start a pass over `plan`, the rest of an epoch; it is known by its `progress`."""
        self.is_loaders = self.is_counted
        self._pass, self._progress = Pass(epoch, plan.start, plan), progress
        self._account.begin(self._pass, rank=rank)

    def add(self, progress: Progress, rows: BatchRows, num_batches: int = 1) -> None:
        """Count some batches that are given, unless another pass has started."""
        if progress is self._progress:
            self._account.add(rows, num_batches)

    def note(self, progress: Progress | None, num_batches: int, *, is_named: bool = False) -> None:
        """Write a line of what a pass gave up to a number of batches, unless a loader counts.

        `is_named` is whether the program reported that it has them.
        """
        if not self.is_loaders and progress is self._progress and self._pass is not None:
            self._pass.num_batches = num_batches
            self._account.note(self._pass, is_given=self._gives_indices and not is_named)

    def count(self, num_batches: int) -> None:
        """Set the number of batches that the program has; the last one ends the epoch's lines."""
        if self._pass is not None:
            self._pass.num_batches = num_batches
            if self._pass.is_whole:
                self.write()

    def write(self) -> None:
        """Write a line of what the program has got since the last one."""
        self._account.note(self._pass)

    @property
    def state_run(self) -> str:
        """See `Account.state_run`."""
        return self._account.state_run

    def resume(self, run: str) -> None:
        """See `Account.resume`."""
        self._account.resume(run)

    def certificate(
        self, num_batches: int | None, ranks: CurrentRanks, *, epoch: int
    ) -> dict[str, Any]:
        """The certificate of the newest pass, see `DataLoader.certificate`.

        The program has `num_batches`; None stands for all that were yielded, or those that a loader
        counted.
        """
        is_given = self._gives_indices and num_batches is None and not self.is_loaders
        if self._pass is not None and self._progress is not None:
            if num_batches is None and not self.is_loaders:
                num_batches = self._progress.num_yielded
            if num_batches is not None:
                self._pass.num_batches = num_batches
        return self._account.certificate(ranks, epoch=epoch, is_given=is_given)

    def __getstate__(self) -> Mapping[str, Any]:
        """The directory travels, the pass does not: it is this process's."""
        return {**self.__dict__, "_pass": None, "_progress": None}


def given_rows(ids: NDArray[np.int64], valid: NDArray[np.bool_] | None) -> BatchRows:
    """The counted rows of given indices: those that only fill a batch are not samples."""
    if valid is None or valid.all():
        return BatchRows(ids)
    return BatchRows(ids[valid], num_padded=int(np.count_nonzero(~valid)))
