"""`sw.buckets`: what a loader is asked to make its batches by, checked before there is an order."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, SupportsIndex

import numpy as np

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.extensions.buckets.columns import BucketColumns, as_groups
from shardwise.extensions.buckets.sampler import DEFAULT_WINDOW, BucketSampler
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE, whole
from shardwise.plan.lengths import as_lengths, rows_where
from shardwise.plan.protocol import Sampler

_logger = logging.getLogger("shardwise")
_OVERSIZED = ("warn", "error")


@dataclass(frozen=True, eq=False)
class Buckets:
    """Batches of neighbours in length, for `batch_by=`; `sw.buckets` makes them and documents them.

    Lengths are float64 `[n]`, or the name of a field; what must not mix (`shape`) is an array `[n]`
    or `[n, k]`, or the name of a field.
    """

    lengths: Any
    batch_size: int | None
    budget: float | None
    window: int | None
    shape: Any
    oversized: Literal["warn", "error"]

    def resolved(self, column: Callable[[str], Any]) -> Buckets:
        """These buckets with the columns of a dataset in place of the names of its fields."""
        lengths, shape = self.lengths, self.shape
        if isinstance(lengths, str):
            lengths = as_lengths(column(lengths))
            _check_above_zero(lengths, self.budget)
        return replace(
            self, lengths=lengths, shape=column(shape) if isinstance(shape, str) else shape
        )

    def rows(self, batch_size: int, *, fixed_size: int | None = None) -> int:
        """The most samples a rank of a batch, in a loader of this batch or global batch size."""
        if fixed_size is not None and (self.batch_size or self.budget):
            both = f"global_batch_size={fixed_size} and batch_size= or budget= of sw.buckets"
            raise ValueError(f"{both} contradict each other: leave one of them out")
        if self.budget is None:
            own = batch_size if self.batch_size is None else self.batch_size
            if batch_size not in (own, DEFAULT_BATCH_SIZE):
                raise ValueError(
                    f"batch_size={batch_size} and sw.buckets(batch_size={own}) contradict each "
                    "other: leave one of them out"
                )
            return own
        if batch_size != DEFAULT_BATCH_SIZE:
            raise ValueError(
                f"batch_size={batch_size} and sw.buckets(budget={self.budget:g}): a budget makes "
                "batches of different numbers of samples; leave batch_size= out"
            )
        least = float(np.min(self.lengths, initial=self.budget))
        return max(1, int(min(self.budget // least, self.window or DEFAULT_WINDOW)))

    def over(
        self, sampler: Sampler, num_samples: int, *, rows: int, seed: int | None
    ) -> BucketSampler:
        """Put these buckets over another order, of a dataset of `num_samples`.

        `rows` are those of a global batch. The seed permutes the batches of a window; None keeps
        them by length.

        Raises:
            ValueError: a column has another number of values than the dataset has samples, or a
                sample is above the budget and that is an error here.
            TypeError: a column is still the name of a field.
        """
        for name, value in (("lengths", self.lengths), ("shape", self.shape)):
            if isinstance(value, str):
                raise TypeError(f"{name}={value!r} names a field, and there is no dataset here")
            if value is not None and len(value) != num_samples:
                raise ValueError(
                    f"{name} has {len(value)} values, the dataset has {num_samples} samples: make "
                    "the column again for this dataset; of a subset, take the same indices of it"
                )
        lengths: Any = self.lengths
        lengths = np.broadcast_to(1.0, num_samples) if lengths is None else lengths
        groups, names = (None, None) if self.shape is None else as_groups(self.shape)
        if self.budget is not None:
            self._tell_oversized(lengths, self.budget)
        return BucketSampler(
            sampler,
            BucketColumns(lengths, groups, names),
            batch_rows=rows if self.budget is None else None,
            budget=self.budget,
            window=self.window,
            seed=seed,
        )

    def _tell_oversized(self, lengths: Any, budget: float) -> None:
        above = len(rows_where(lambda block: block > budget, lengths))
        if not above:
            return
        worst = int(np.argmax(lengths))
        what = (
            f"{above} of {len(lengths)} samples are longer than budget={budget:g}; the longest is "
            f"sample {worst} with {lengths[worst]:g}"
        )
        if self.oversized == "error":
            raise ValueError(
                f"{what}: raise the budget, leave them out with ds.subset(lengths <= budget), or "
                "pass oversized='warn' to have each as a batch of its own"
            )
        _logger.warning(
            "%s: each of them is a batch of its own, above the budget; pass oversized='error' to "
            "refuse them, or leave them out with ds.subset(lengths <= budget)",
            what,
        )


@suggest_names
def buckets(
    lengths: Any,
    *,
    batch_size: SupportsIndex | None = None,
    budget: float | None = None,
    window: SupportsIndex | None = None,
    shape: Any = None,
    oversized: Literal["warn", "error"] = "warn",
) -> Buckets:
    """Batches of samples of about one length, so that padding them costs little.

    Give it to a loader as `batch_by=`. The loader's own order is walked through in windows, and
    each window is sorted by length and cut into batches, which come in another order each epoch.

    Args:
        lengths: one number a sample, 0 or more: an array, a column (`ds.column(...)`), or the name
            of a field that is a number. None where `shape` alone matters.
        batch_size: samples a rank in each batch; None for the loader's. The global batch, of all
            ranks, is one bucket.
        budget: in place of a batch size: the largest padded cost of a rank's batch, which is its
            rows x its longest sample, in the unit of `lengths` (tokens, seconds, pixels). No batch
            is above it, but a single sample that is. These batches are the same for every world
            size; their number differs from epoch to epoch, and `len(loader)` is that of the
            loader's epoch.
        window: samples that are sorted together. Larger ones waste less padding, and bring the same
            neighbours together more often. None for 64 global batches, at least 16,384 (with a
            budget 16,384), at a cost for each rank that does not grow with the number of ranks. A
            number is sorted as a whole by each rank; below 16 global batches it gives little, which
            is warned of.
        shape: what must not mix in a batch: one value a sample, or a row of them such as (height,
            width), as an array, a column or the name of a field.
        oversized: "warn" makes a sample above the budget its own batch, and logs one warning
            when the loader is made, with the number of such samples and the longest; "error"
            raises an error instead.

    Raises:
        ValueError: batch_size and budget are both given, or a value is out of range: lengths that
            are negative or not finite, or 0 with a budget.
        TypeError: lengths are not numbers.

    Examples:
        >>> import shardwise as sw
        >>> data = sw.wrap([{"n": n} for n in (3, 9, 1, 8, 2, 7)])
        >>> by = sw.buckets("n", budget=20)
        >>> [batch["n"].tolist() for batch in sw.DataLoader(data, batch_by=by, output="numpy")]
        [[9], [8, 7], [3, 1, 2]]
    """
    if batch_size is not None and budget is not None:
        raise ValueError(
            f"sw.buckets(batch_size={batch_size}, budget={budget}): a batch has a fixed number of "
            "samples or a largest cost; leave one of them out"
        )
    if batch_size is not None:
        batch_size = whole("batch_size", batch_size, least=1)
    if budget is not None:
        budget = _checked_budget(budget)
        if lengths is None:
            raise ValueError(f"budget={budget:g} is counted in lengths: give lengths, too")
    if lengths is None and shape is None:
        raise ValueError("sw.buckets(None): give lengths, or shape= for groups that must not mix")
    check_choice("oversized", oversized, _OVERSIZED)
    if lengths is not None and not isinstance(lengths, str):
        lengths = as_lengths(lengths)
        _check_above_zero(lengths, budget)
    if shape is not None and not isinstance(shape, str):
        shape = np.asarray(shape)
    window = None if window is None else whole("window", window, least=1)
    return Buckets(lengths, batch_size, budget, window, shape, oversized)


def _checked_budget(budget: Any) -> float:
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.number):
        raise TypeError(f"budget must be a number, not a {type(budget).__name__}")
    try:
        number = float(budget)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"budget={budget}: use a finite number above 0, in the unit of lengths")
    return number


def _check_above_zero(lengths: Any, budget: float | None) -> None:
    """A budget has room for any number of samples without length, and no batch has."""
    if budget is None:
        return
    zeros = rows_where(lambda block: block == 0, lengths)
    if len(zeros):
        raise ValueError(
            f"{len(zeros)} of {len(lengths)} lengths are 0, the first of sample {zeros[0]}: such "
            f"samples cost nothing of budget={budget:g}, so their batch would have no end; leave "
            "them out with ds.subset(lengths > 0), or count each sample as 1 more"
        )
