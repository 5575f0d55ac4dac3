"""The partition of an order that is cut into batches by its sampler: budgets, groups, buckets.

A step takes the sampler's next batches: one for each rank, or one that all ranks share. This keeps
I1 and I2 as `Partition` does. A batch never has rows of two of the sampler's batches, so that what
holds for these (a cap on the cost, one group of samples) holds for every rank, step and world size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.partition import Partition, Remainder, checked_rank, run_of
from shardwise.plan.protocol import BatchEnds

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchPartition:
    """The division of a sampler's batches, or of those left of an epoch, among ranks.

    Args:
        ends: int64 `[batches]`, ascending: the position after each batch of the epoch.
        whole: rows of a whole global batch, where a batch is shared by all ranks: divided evenly,
            in runs that differ by one at most, and cut into even parts first where it is larger
            than `batch_size * world_size`. None where a batch is one rank's.
        batch_size: the most rows that a rank has at a step.
        world_size: W, ranks.
        remainder: "drop" leaves out the last batches, where they are too few for all ranks, or
            shorter than `whole`. "pad": a rank without a batch repeats another rank's last one,
            and a short one is filled with its own rows again; these are not valid. "uneven": the
            last batches are divided over all ranks, each among an equal share of them.
        start: the position to go on from, any in [0, N], also within a batch.
        fixed_size: rows of a global batch where they are not `batch_size * world_size`.

    >>> part = BatchPartition(np.array([3, 5, 9]), None, 4, 2, "uneven")
    >>> [part.block(range(step, step + 1), rank=1)[0].tolist() for step in range(2)]
    [[3, 4], [7, 8]]
    """

    has_even_steps: ClassVar[bool] = False

    ends: Ints
    whole: int | None
    batch_size: int
    world_size: int
    remainder: Remainder = "drop"
    start: int = 0
    fixed_size: int | None = None
    # int64 `[runs]`: where the batches that are left start and end, without those that are dropped
    # for being short.
    _begins: Ints = field(init=False)
    _stops: Ints = field(init=False)

    @classmethod
    def of(cls, base: Partition, own: BatchEnds) -> BatchPartition:
        """Divide the batches that a sampler cuts, with another partition's ranks and start."""
        sizes = base.batch_size, base.world_size
        return cls(own.ends, own.rows, *sizes, base.remainder, base.start, base.fixed_size)

    def __post_init__(self) -> None:
        first = int(np.searchsorted(self.ends, self.start, side="right"))
        stops = self.ends[first:]
        begins = np.concatenate([[self.start], stops[:-1]])[: len(stops)]
        if self.whole is not None:
            if self.remainder == "drop":
                # The first batch counts with its whole size, wherever in it this starts.
                is_whole = np.diff(self.ends, prepend=0)[first:] >= self.whole
                begins, stops = begins[is_whole], stops[is_whole]
            begins, stops = _parts(begins, stops, self.global_batch_size)
        object.__setattr__(self, "_begins", begins)
        object.__setattr__(self, "_stops", stops)

    @property
    def num_samples(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def global_batch_size(self) -> int:
        return self.fixed_size or self.batch_size * self.world_size

    @property
    def num_steps(self) -> int:
        count = len(self._stops)
        return count // self._a_step if self.remainder == "drop" else -(-count // self._a_step)

    @property
    def num_dropped(self) -> int:
        if self.remainder != "drop":
            return 0
        return self.num_samples - self.start - int(self._sizes[: self._num_full].sum())

    @property
    def num_padded(self) -> int:
        if self.remainder != "pad":
            return 0
        sizes = self._sizes
        if self.whole is not None:
            return len(sizes) * self.global_batch_size - int(sizes.sum())
        last = sizes[self._num_full :]
        return (
            int(last[np.arange(len(last), self.world_size) % len(last)].sum()) if last.size else 0
        )

    @property
    def has_empty(self) -> bool:
        if self.remainder == "pad":
            return False
        sizes = self._sizes
        if self.whole is not None:
            return bool((sizes < self.world_size).any())
        last = sizes[self._num_full :] if self.remainder == "uneven" else sizes[:0]
        return bool((last < -(-self.world_size // max(1, len(last)))).any())

    def position_after(self, num_batches: int) -> int:
        runs = min(num_batches * self._a_step, len(self._stops))
        return int(self._stops[runs - 1]) if runs else self.start

    def row_ends(self, steps: range, rank: int) -> Ints:
        return np.cumsum(self._rows(steps, rank)[1])

    def block(self, steps: range, rank: int) -> tuple[Ints, NDArray[np.bool_]]:
        """One rank's positions at ascending steps, concatenated, and which of them are valid.

        See `row_ends`.
        """
        firsts, counts, limits, is_valid = self._rows(steps, rank)
        # For each row its number within its batch.
        rows = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        if self.remainder != "pad" or self.whole is None:
            return np.repeat(firsts, counts) + rows, np.repeat(is_valid, counts)
        rows += run_of(rank, self.global_batch_size, self.world_size).start
        limit = np.repeat(limits, counts)
        return np.repeat(firsts, counts) + rows % limit, rows < limit

    @property
    def _a_step(self) -> int:
        return self.world_size if self.whole is None else 1

    @property
    def _num_full(self) -> int:
        """Runs of the steps that have as many as there should be."""
        return len(self._stops) // self._a_step * self._a_step

    @property
    def _sizes(self) -> Ints:
        return self._stops - self._begins

    def _rows(self, steps: range, rank: int) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
        """For each step of one rank: `(first position, rows, rows of the run, is valid)`."""
        rank = checked_rank(rank, steps, self)
        first_runs = np.arange(steps.start, steps.stop, steps.step) * self._a_step
        num_runs = np.minimum(self._a_step, len(self._stops) - first_runs)
        if self.remainder == "pad":
            run = first_runs + rank % num_runs
            begin, size = self._begins[run], self._sizes[run]
            if self.whole is not None:
                share = len(run_of(rank, self.global_batch_size, self.world_size))
                return begin, np.full(len(run), share), size, size > 0
            return begin, size, size, rank < num_runs
        # The ranks are dealt to the runs of their step, and a run is divided among its ranks.
        number = rank * num_runs // self.world_size
        first_rank = -(-number * self.world_size // num_runs)
        num_ranks = -(-(number + 1) * self.world_size // num_runs) - first_rank
        begin, size = self._begins[first_runs + number], self._sizes[first_runs + number]
        share, extra = np.divmod(size, num_ranks)
        place = rank - first_rank
        first = begin + place * share + np.minimum(place, extra)
        return first, share + (place < extra), size, size > 0


def _parts(begins: Ints, stops: Ints, most: int) -> tuple[Ints, Ints]:
    """Cut runs that are longer than `most` into as few even parts as that takes."""
    sizes = stops - begins
    counts = -(-sizes // most)
    if not (counts > 1).any():
        return begins, stops
    run = np.repeat(np.arange(len(sizes)), counts)
    part = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    edges = [begins[run] + sizes[run] * each // counts[run] for each in (part, part + 1)]
    return edges[0], edges[1]
