"""The partition: which positions of an epoch are a rank's, step by step.

Global batch s covers the M positions from `start + s * M` on. In it the positions stand in lane
order (of one lane, ascending), and rank r has the r-th of W even runs of them: B = M / W positions,
or where W does not divide M, one more on the first ranks. This keeps: each position once over all
ranks (I1), equal steps on all ranks (I2), and the same samples in global batch s for every world
size of the same global batch (I3). Beside that, a rank has few lanes and so reads few shards, and
the ranks' batches one after the other are in order: what a gather gives. Where `costs` are known,
the runs are cut from a dealt order instead, in which they cost nearly the same.

A window shuffle reads its lanes in turn (position p is lane p mod L), each lane through shards of
its own. For M positions and L lanes, a batch has M // L positions of each lane and one more of
e = M mod L of them, a cyclic interval that moves on by e each step. In the plain order of lanes the
runs' borders would move with it, by up to e positions. Let d = gcd(M, L), and let the lane
d * (e/d * x mod L/d) + c be number c * L/d + x. Then a lane has its extra position iff
(e/d * x - u) mod L/d < e/d, u being where the batch starts: a balanced (Sturmian) word, whose
prefixes have the same sum for every u up to rounding. So the border at M * r / W always falls into
the lane number floor(L * r / W): it is shared by two ranks, and no other lane is; for every M, and
for batches that start anywhere. It depends on (M, L) alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice
from shardwise.plan.arguments import whole
from shardwise.plan.balance import deal_rows

Remainder = Literal["drop", "pad", "uneven"]
_REMAINDERS = ("drop", "pad", "uneven")
# Positions of it, and steps times it, are int64.
_MAX_GLOBAL_BATCH = 2**48
_LEAST = {"num_samples": 0, "batch_size": 1, "world_size": 1, "start": 0, "lanes": 1}


@dataclass(frozen=True)
class Partition:
    """The division of an epoch's positions, or of those that are left, among ranks.

    Args:
        num_samples: N, positions in the epoch.
        batch_size: B, samples a rank and step.
        world_size: W, ranks.
        remainder: what becomes of the last positions that don't fill a global batch. "drop": they
            are left out and counted. "pad": after them the batch is filled with positions from
            the epoch's start on, wherever it was resumed; they are not valid, and stand last
            over all ranks. "uneven": they are divided evenly, in runs that differ by one at most;
            a rank gets none only where fewer positions than ranks are left.
        start: the position to resume from, any in [0, N], whatever the batch or world size.
        lanes: position p is of lane p mod lanes; 1 where the sampler has none.
        fixed_size: M, samples a step over all ranks, for any W; `batch_size` is then the largest
            share, whatever was passed. None for B * W.
        shift: the lane of the epoch's position 0.
        costs: float64 `[k]` of k positions, to deal the rows of a global batch by; None for lanes.

    A rank has the same lanes in every step of one global batch size, wherever it resumes.

    >>> Partition(10, 2, 2).block(range(2), rank=1)[0]
    array([2, 3, 6, 7])
    """

    # All steps have as many samples as a global batch, but the last.
    has_even_steps: ClassVar[bool] = True

    num_samples: int
    batch_size: int
    world_size: int
    remainder: Remainder = "drop"
    start: int = 0
    lanes: int = 1
    fixed_size: int | None = None
    shift: int = 0
    costs: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            # As Python's ints: numpy's would overflow, and are not JSON.
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        check_choice("remainder", self.remainder, _REMAINDERS)
        size = self.fixed_size
        if size is not None:
            if size < self.world_size:
                raise ValueError(
                    f"global_batch_size={size} with world_size={self.world_size}: some ranks would "
                    "have no sample at any step; use a global batch of one sample a rank or more"
                )
            object.__setattr__(self, "batch_size", -(-size // self.world_size))
        if self.global_batch_size > _MAX_GLOBAL_BATCH:
            raise ValueError(
                f"{self.size_text}: a global batch has "
                "at most 2**48 samples; for all samples in one batch give their number"
            )
        if self.start > self.num_samples:
            raise ValueError(
                f"start={self.start} is behind the end of the epoch of {self.num_samples} samples"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples a step, over all ranks."""
        return self.fixed_size or self.batch_size * self.world_size

    @property
    def size_text(self) -> str:
        """The global batch size by the arguments that made it, for messages."""
        if self.fixed_size is not None:
            return f"global_batch_size={self.fixed_size}"
        return f"batch_size={self.batch_size} x world_size={self.world_size}"

    @property
    def num_steps(self) -> int:
        """Batches of what is left: the same on every rank."""
        left = self.num_samples - self.start
        if self.remainder == "drop":
            return left // self.global_batch_size
        return -(-left // self.global_batch_size)

    @property
    def num_dropped(self) -> int:
        """Positions of what is left that no rank yields, over all ranks."""
        if self.remainder != "drop":
            return 0
        return (self.num_samples - self.start) % self.global_batch_size

    @property
    def num_padded(self) -> int:
        """Rows that repeat a sample to fill the last batch, over all ranks."""
        if self.remainder != "pad":
            return 0
        return -(self.num_samples - self.start) % self.global_batch_size

    @property
    def has_empty(self) -> bool:
        """Whether some rank gets a batch without a sample."""
        left = (self.num_samples - self.start) % self.global_batch_size
        return self.remainder == "uneven" and 0 < left < self.world_size

    def position_after(self, num_batches: int) -> int:
        """The position after some batches of what is left."""
        return min(self.start + num_batches * self.global_batch_size, self.num_samples)

    def row_ends(self, steps: range, rank: int) -> NDArray[np.int64]:
        """The end of each step in the rows of `block`, int64 `[steps]`."""
        share = len(run_of(rank, self.global_batch_size, self.world_size))
        ends = np.arange(1, len(steps) + 1) * share
        left = self.num_samples - self.start - steps[-1] * self.global_batch_size
        if self.remainder == "uneven" and left < self.global_batch_size:
            ends[-1] += len(run_of(rank, left, self.world_size)) - share
        return ends

    def block(self, steps: range, rank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """One rank's positions at ascending steps: `(positions, valid)`, int64 and bool `[k]`.

        `row_ends` has where each step ends: all have as many rows, but the last one of "uneven",
        where they may be fewer, also 0. Not valid are rows that "pad" filled in.
        """
        rank, size = checked_rank(rank, steps, self), self.global_batch_size
        begins = np.arange(steps.start, steps.stop, steps.step) * size + self.start
        slots = run_of(rank, size, self.world_size)
        is_cut = self.start + (steps[-1] + 1) * size > self.num_samples
        if not is_cut:
            positions = self._positions(begins, slots, size)
            return positions, np.ones(len(positions), dtype=np.bool_)
        cut, valid = self._cut_last_batch(begins[-1:], rank, slots)
        if len(steps) == 1:  # its nominal size may be huge: 10 samples may be one batch of 10^9
            return cut, valid
        positions = self._positions(begins[:-1], slots, size)
        return np.append(positions, cut), np.append(np.ones(len(positions), np.bool_), valid)

    def _positions(self, begins: NDArray[np.int64], slots: range, size: int) -> NDArray[np.int64]:
        """The positions at these slots of the batches with these starts, int64 `[k]`."""
        if self.costs is not None:
            return deal_rows(self.costs, begins, size, self.world_size)[:, slots].ravel()
        first_lanes = (begins + self.shift) % self.lanes
        places = in_lane_order(first_lanes, slots, size=size, lanes=self.lanes)
        return (places + begins[:, None]).ravel()

    def _cut_last_batch(
        self, begin: NDArray[np.int64], rank: int, slots: range
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """One rank's part of the last global batch, where that is not full."""
        left = self.num_samples - int(begin[0])
        if self.remainder == "pad":
            there = range(slots.start, max(slots.start, min(slots.stop, left)))
            filled = np.arange(there.stop, slots.stop) - left
            positions = self._positions(begin, there, left)
            valid = np.arange(len(slots)) < len(there)
            return np.append(positions, filled % self.num_samples), valid
        there = run_of(rank, left, self.world_size)
        return self._positions(begin, there, left), np.ones(len(there), dtype=np.bool_)


def run_of(rank: int, size: int, world_size: int) -> range:
    """Return one rank's run where `size` places are cut into even ones, the longer ones first.

    >>> [len(run_of(rank, 24, 5)) for rank in range(5)]
    [5, 5, 5, 5, 4]
    """
    share, extra = divmod(size, world_size)
    first = rank * share + min(rank, extra)
    return range(first, first + share + (rank < extra))


def ranks_of(
    slots: NDArray[np.int64], sizes: NDArray[np.int64], world_size: int
) -> NDArray[np.int64]:
    """Return the ranks whose runs have these places, each of a batch of its own size.

    >>> ranks_of(np.array([0, 4, 5, 23]), np.array([24] * 4), 5).tolist()
    [0, 0, 1, 4]
    """
    shares, extra = np.divmod(sizes, world_size)
    longer = extra * (shares + 1)
    later = extra + (slots - longer) // np.maximum(1, shares)
    ranks: NDArray[np.int64] = np.where(slots < longer, slots // (shares + 1), later)
    return ranks


def checked_rank(rank: int, steps: range, partition: Any) -> int:
    """The rank as an int."""
    rank = operator.index(rank)
    if not 0 <= rank < partition.world_size:
        raise ValueError(f"rank={rank} must be in 0..{partition.world_size - 1}")
    if not (steps and 0 <= steps[0] <= steps[-1] < partition.num_steps):
        text = f"{steps[0]}" if len(steps) == 1 else f"{steps}"
        raise ValueError(f"step {text}: there are {partition.num_steps} steps, from 0 on")
    return rank


Ints = NDArray[np.int64]

# Products of two numbers up to this stay within int64.
_MAX_FACTOR = 2**31


def in_lane_order(first_lanes: Ints, slots: range, *, size: int, lanes: int) -> Ints:
    """Map a run of slots of the lane order to positions in global batches.

    Args:
        first_lanes: int64 `[steps]`, the lane of each batch's first position, in [0, lanes).
        slots: k places in the lane order, within [0, size).
        size: positions in each batch, M.
        lanes: L.

    Returns:
        int64 `[steps, k]`, in [0, size): lane after lane, ascending within a lane. Read-only.

    >>> in_lane_order(np.array([0, 1]), range(6), size=6, lanes=2)
    array([[0, 2, 4, 1, 3, 5],
           [1, 3, 5, 0, 2, 4]])
    """
    if lanes == 1 or max(size, lanes) > _MAX_FACTOR:
        return np.broadcast_to(np.arange(slots.start, slots.stop), (len(first_lanes), len(slots)))
    if len(first_lanes) == 1:
        return _of_one_step(int(first_lanes[0]), slots, size, lanes)
    return _compute_places(first_lanes[:, None], slots, size, lanes)


@lru_cache(maxsize=256)
def _of_one_step(first_lane: int, slots: range, size: int, lanes: int) -> Ints:
    """Steps start at lanes / gcd(size, lanes) lanes only: often at one, for batches of 64 at 16."""
    places = _compute_places(np.array([[first_lane]]), slots, size, lanes)
    places.flags.writeable = False
    return places


@lru_cache(maxsize=64)
def _slots(slots: range, size: int, lanes: int) -> tuple[int, int, int, int, Ints, Ints, Ints]:
    """The values that depend on no step, made once for a rank: 10 us, half of a step's cost.

    For d = gcd(size, lanes) classes of lanes: d; lanes, positions and extra positions of a class;
    int64 `[k]` each slot's class, its number within that, and (number + 1) * lanes of a class - 1.
    """
    d = gcd(size, lanes)
    num_lanes, num_slots, extra = lanes // d, size // d, size % lanes // d
    classes, slot = np.divmod(np.arange(slots.start, slots.stop), num_slots)
    return d, num_lanes, num_slots, extra, classes, slot, (slot + 1) * num_lanes - 1


def _compute_places(first: Ints, slots: range, size: int, lanes: int) -> Ints:
    d, num_lanes, num_slots, extra, classes, slot, ahead = _slots(slots, size, lanes)
    block = first // d
    # The first x lanes of a class have (num_slots * x + before) // num_lanes positions.
    before = (-extra - block - (classes < first - block * d)) % num_lanes
    x = (ahead - before) // num_slots
    turn = slot - (num_slots * x + before) // num_lanes
    lane = x * extra % num_lanes * d + classes
    places: Ints = (lane - first) % lanes + turn * lanes
    return places
