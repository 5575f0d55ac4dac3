"""Balance: the rows of a global batch, dealt so that all ranks have nearly equal cost.

The global batch stays what it is, and each rank has as many rows as without costs: only which rows
these are depends on them. Rows are dealt in rounds of one per rank, the dearest first, and of each
round the dearest row to the rank that has least so far.

All ranks must deal alike on any machine, so nothing here sums in an order that numpy chooses.

Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969 (longest first).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.plan.lengths import as_lengths

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Rows that are dealt by one numpy call: 0.3 us each, and 0.5 MB an array.
_BLOCK_ROWS = 65_536


def checked_costs(costs: ArrayLike, num_samples: int, *, is_cut: bool) -> Floats:
    """Return one cost per sample; `is_cut` where the order has batches that must not mix."""
    checked = as_lengths(costs, name="costs").astype(np.float64, copy=False)
    if len(checked) != num_samples:
        raise ValueError(
            f"balance has {len(checked)} costs, the dataset has {num_samples} samples: make the "
            "costs again for this dataset; of a subset, take the same indices of them"
        )
    if is_cut:
        raise ValueError(
            "balance= and batches that must not mix, by a budget or a shape: leave one of them "
            "out; batch_by=sw.buckets(cost) alone balances the ranks, too"
        )
    return checked


def deal_rows(costs: Callable[[Ints], Floats], begins: Ints, size: int, world_size: int) -> Ints:
    """Deal the positions of the batches of `size` with these starts: int64 `[steps, size]`.

    Rank after rank, ascending within a rank; `costs` gives those of positions.
    """
    dealt = np.empty((len(begins), size), np.int64)
    block = max(1, _BLOCK_ROWS // max(1, size))
    for first in range(0, len(begins), block):
        positions = begins[first : first + block, None] + np.arange(size)
        costs_of = costs(positions.ravel()).reshape(positions.shape)
        rows = _dealt(costs_of, world_size)
        dealt[first : first + block] = np.take_along_axis(positions, rows, axis=1)
    return dealt


def _dealt(costs: Floats, world_size: int) -> Ints:
    """Rows of each batch, rank after rank: int64 `[steps, size]`."""
    num_steps, size = costs.shape
    num_rounds = -(-size // world_size)
    # Missing rows cost nothing, and come last among the rows without a cost.
    filled = np.zeros((num_steps, num_rounds * world_size))
    filled[:, :size] = costs
    dearest = np.argsort(-filled, axis=1, kind="stable")
    rows = dearest.reshape(num_steps, num_rounds, world_size)
    values = np.take_along_axis(filled, dearest, axis=1).reshape(rows.shape)
    steps = np.arange(num_steps)[:, None]
    loads = values[:, 0].copy()
    for number in range(1, num_rounds):
        least = np.argsort(loads, axis=1, kind="stable")
        for each in (rows, values):
            each[steps, number, least] = each[:, number].copy()
        loads += values[:, number]
    # The ranks that have a row less come last, as in `run_of`.
    ranks = np.argsort(rows[:, -1] >= size, axis=1, kind="stable")
    by_rank = np.sort(rows[steps, :, ranks], axis=2).reshape(num_steps, -1)
    is_there = np.ones((world_size, num_rounds), np.bool_)
    is_there[size - (num_rounds - 1) * world_size :, -1] = False
    return by_rank[:, is_there.ravel()]
