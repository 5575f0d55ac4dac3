"""The windows of an epoch of buckets: where they lie, and how the samples of one are cut by length.

Pure numpy; `BucketSampler` makes an order of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.permute import mix_array

Ints = NDArray[np.int64]
Lengths = NDArray[np.float64]

# Precision of the common cost of a window's batches, as a share of the budget.
_PRECISION = 0.001


@dataclass(frozen=True, slots=True)
class Window:
    """A window of an epoch.

    Attributes:
        begin, stop: its range in `Layout.places`.
        sizes: int64 `[k]`, rows of its batches, longest samples first.
        order: int64 `[k]`, in which order these come.
        is_alone: whether it has all samples of its group, and so the same ones in every epoch.
    """

    begin: int
    stop: int
    sizes: Ints
    order: Ints
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an epoch's batches.

    Attributes:
        windows: the windows; the number of one keys the order of its batches.
        places: int64 `[N]`, positions of the inner order, group after group; None where there is
            one group, for the positions themselves.
        ends: int64 `[batches]`, the position after each batch.
        window_of: int64 `[batches]`, the number of its window.
        shifts: int64 `[batches]`, what to add to a position of it to get a row of its window.
    """

    windows: list[Window]
    places: Ints | None
    ends: Ints
    window_of: Ints
    shifts: Ints


def budget_sizes(lengths: Lengths, budget: float) -> list[int]:
    """Rows of each batch of a window, so that rows x longest never exceeds the budget.

    The cut has as few batches as possible and, among such cuts, the smallest largest batch, so that
    the last batch is not much smaller than the others. A sample above the budget is its own batch.

    Args:
        lengths: float64 `[n]`, all above 0, in the order to cut: longest first, or nearly so.
        budget: the largest rows x longest of a batch.

    >>> budget_sizes(np.array([9.0, 5.0, 4.0, 2.0, 2.0, 1.0]), 10.0)
    [1, 2, 3]
    """
    values = lengths.tolist()
    is_sorted = bool((lengths[1:] <= lengths[:-1]).all())
    best = _greedy(values, budget, most=len(values), is_sorted=is_sorted)
    # Batches cost at least their samples without padding.
    low, high = float(np.minimum(lengths, budget).sum()) / max(1, len(best)), budget
    while len(best) > 1 and high - low > _PRECISION * budget:
        middle = (low + high) / 2
        sizes = _greedy(values, middle, most=len(best), is_sorted=is_sorted)
        if sum(sizes) < len(values):
            low = middle
        else:
            best, high = sizes, middle
    return best


def _greedy(lengths: list[float], cap: float, *, most: int, is_sorted: bool) -> list[int]:
    """Rows of up to `most` full batches, from the first sample on.

    Floor division of floats is exact, and the product is rounded at most up to the cap itself.
    """
    sizes: list[int] = []
    at, count = 0, len(lengths)
    while at < count and len(sizes) < most:
        size = min(max(1, int(cap // lengths[at])), count - at)
        if not is_sorted:
            size = max(1, min(size, int(cap // max(lengths[at : at + size]))))
        sizes.append(size)
        at += size
    return sizes


def batch_order(count: int, key: int | None, unit: int) -> Ints:
    """The order in which a window's batches come, int64 `[count]`, 0 being the longest samples.

    Units of `unit` neighbours are permuted among each other, and batches within their unit. No key
    keeps the order of lengths.

    >>> batch_order(4, None, 1)
    array([0, 1, 2, 3])
    """
    numbers = np.arange(count)
    if key is None:
        return numbers
    unit_of = numbers // unit
    # The units have negative numbers, so that their words are other ones than the batches'.
    return np.lexsort((mix_array(key, numbers), unit_of, mix_array(key, ~unit_of)))


def blurred(lengths: Lengths, key: int, share: float | Lengths) -> Lengths:
    """Scores that sort nearly as the lengths do, but for moves by up to half a batch: `[n]`.

    For a window that has the same samples in every epoch: without it, so would its batches.

    Args:
        lengths: float64 `[n]`.
        key: of the moves.
        share: which part of a batch each row is: 1 / rows, or its length / budget.
    """
    order = np.argsort(-lengths, kind="stable")
    places = np.empty(len(lengths))
    places[order] = np.cumsum(np.broadcast_to(share, lengths.shape)[order])
    words = mix_array(key, np.arange(len(lengths)))
    return -(places + (words >> np.uint64(11)).astype(np.float64) * 2.0**-54)


def arranged(scores: Lengths, sizes: Ints, order: Ints) -> Ints:
    """The rows of a window, batch after batch: int64 `[n]`.

    Args:
        scores: float64 `[n]`, in the order of the window: lengths, or what `blurred` made of them.
        sizes: int64 `[k]`, rows of each batch, highest scores first; of the sum n.
        order: int64 `[k]`, in which order these batches come.

    Within a batch the rows keep the order of the window, so that a row's place in its batch, and
    with it the rank that gets it, has nothing to do with its length.

    >>> arranged(np.array([5.0, 1.0, 4.0, 2.0]), np.array([2, 2]), np.array([1, 0]))
    array([1, 3, 0, 2])
    """
    slots = np.empty(len(order), dtype=np.min_scalar_type(len(order)))
    slots[order] = np.arange(len(order))
    slot_of_row = np.empty(len(scores), dtype=slots.dtype)
    slot_of_row[np.argsort(-scores, kind="stable")] = np.repeat(slots, sizes)
    return np.argsort(slot_of_row, kind="stable")
