"""The lane order: in which order the positions of a global batch are cut into one run a rank.

A window shuffle reads its lanes in turn (position p is lane p mod L), each lane through shards of
its own. Ranks that take runs of positions sorted by lane read few lanes each, and so few shards.

For M = size and L = lanes, a batch has M // L positions of each lane and one more of e = M mod L of
them, a cyclic interval that moves on by e each step. In the plain order of lanes the runs' borders
would move with it, by up to e positions. Let d = gcd(M, L), and let the lane d * (e/d * x mod L/d)
+ c be number c * L/d + x. Then a lane has its extra position iff (e/d * x - u) mod L/d < e/d, u
being where the batch starts: a balanced (Sturmian) word, whose prefixes have the same sum for every
u up to rounding. So the border at M * r / W always falls into the lane number floor(L * r / W): it
is shared by two ranks, and no other lane is; for every M, and for batches that start anywhere.

It depends on (M, L) alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

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
