"""The chain of headers in a block of a shard: each header's position follows from the one before.

Payloads that look like headers do not fool the chain.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.tar.scan.headers import BLOCK, parse_sizes

__all__ = ["EXTENDED", "IS_EXTENDED", "IS_PAX", "KIND", "PAX", "WITHOUT_PAYLOAD", "links", "walk"]

# Extended headers are about the next header: GNU's long names, PAX records.
EXTENDED = b"LKxgX"
PAX = b"xgX"
# Links, devices, directories and pipes have no payload, whatever their size field says.
WITHOUT_PAYLOAD = b"123456"
IS_EXTENDED, IS_PAX, _IS_EMPTY = (
    np.isin(np.arange(256), list(kinds)) for kinds in (EXTENDED, PAX, WITHOUT_PAYLOAD)
)

# The byte of a header that states the kind of its member.
KIND = 156


def links(
    heads: NDArray[np.uint8], positions: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of possible headers, and the block where the next header would be; -1 unknown."""
    sizes = parse_sizes(heads)
    kinds = heads[:, KIND]
    sizes[_IS_EMPTY[kinds]] = 0
    follow = positions + 1 + (sizes + (BLOCK - 1)) // BLOCK
    follow[(sizes < 0) | (kinds == ord("S"))] = -1
    return sizes, follow


def walk(positions: NDArray[np.intp], follow: NDArray[np.int64], stop: int) -> NDArray[np.intp]:
    """The rows of the true headers: from the first on, each where the one before it says.

    Args:
        positions: the blocks that look like headers, ascending.
        follow: for each, the block where the next header would be; -1 stops the walk.
        stop: the number of blocks.
    """
    # Most blocks that look like headers are the next in the chain: runs of them are taken whole.
    breaks = [*np.flatnonzero(follow[:-1] != positions[1:]).tolist(), len(positions) - 1]
    runs = []
    row = 0
    while True:
        last = breaks[bisect_left(breaks, row)]
        runs.append(np.arange(row, last + 1))
        target = int(follow[last])
        if not 0 <= target < stop:
            break
        row = int(np.searchsorted(positions, target))
        if row == len(positions) or positions[row] != target:
            break
    return np.concatenate(runs)
