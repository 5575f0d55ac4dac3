"""The chain of headers in a block of a shard: each header's place follows from the one before.

Keeps I6: payloads that look like headers do not fool the chain. Pure; imports numpy and the
headers.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.tar.scan.headers import BLOCK, parse_sizes

__all__ = ["EXTENDED", "IS_EXTENDED", "IS_PAX", "KIND", "PAX", "WITHOUT_PAYLOAD", "links", "walk"]

# Headers that say something about the next one: GNU's long names, PAX records.
EXTENDED = b"LKxgX"
PAX = b"xgX"
# Links, devices, directories and pipes have no payload, whatever their size field says.
WITHOUT_PAYLOAD = b"123456"
IS_EXTENDED, IS_PAX, _IS_EMPTY = (
    np.isin(np.arange(256), list(kinds)) for kinds in (EXTENDED, PAX, WITHOUT_PAYLOAD)
)

# Where a header says what kind of member follows.
KIND = 156


def links(
    heads: NDArray[np.uint8], places: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of possible headers, and the block where the next header would be; -1 unknown."""
    sizes = parse_sizes(heads)
    kinds = heads[:, KIND]
    sizes[_IS_EMPTY[kinds]] = 0
    follow = places + 1 + (sizes + (BLOCK - 1)) // BLOCK
    follow[(sizes < 0) | (kinds == ord("S"))] = -1
    return sizes, follow


def walk(places: NDArray[np.intp], follow: NDArray[np.int64], stop: int) -> NDArray[np.intp]:
    """The rows of the true headers: from the first one on, each where the one before it says.

    Args:
        places: the blocks of all that look like headers, ascending.
        follow: for each, the block where the next header would be; -1 stops the walk.
        stop: the number of blocks.
    """
    # In the plain case each one that looks like a header is one, and is the next in the chain.
    breaks = [*np.flatnonzero(follow[:-1] != places[1:]).tolist(), len(places) - 1]
    pieces = []
    row = 0
    while True:
        last = breaks[bisect_left(breaks, row)]
        pieces.append(np.arange(row, last + 1))
        target = int(follow[last])
        if not 0 <= target < stop:
            break
        row = int(np.searchsorted(places, target))
        if row == len(places) or places[row] != target:
            break
    return np.concatenate(pieces)
