"""Which node of a job holds which block of a dataset, as a loader of this machine computed it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.remote.cache.loader_file import HEAD, live_files
from shardwise.plan.uses import NEVER

# By key: the node that holds the block from its first read in this epoch on, the one that held it
# before (-1 for none), the step of that read, and of the first one in the next epoch.
HOME = np.dtype(
    [("key", "<u8"), ("home", "<i4"), ("before", "<i4"), ("due", "<i8"), ("next", "<i8")]
)
# Added to the steps of blocks that another node holds: they are evicted before its own.
_FAR = 1 << 60


class Homes:
    """The homes of blocks; `facts` has this node's number, addresses of all and their token."""

    def __init__(self, path: Path) -> None:
        self._head = np.memmap(path, np.int64, "r", shape=(2,))
        count = int(self._head[1])
        self.is_pending = count < 0
        self.facts: dict[str, Any] = {}
        if count > 0:
            self._rows = np.memmap(path, HOME, "r", offset=HEAD.size, shape=(count,))
            self.facts = json.loads(path.read_bytes()[HEAD.size + self._rows.nbytes :])

    @classmethod
    def read_all(cls, folder: str) -> list[Homes]:
        """Those of the loaders of this machine that are computed."""
        found: Iterator[Homes] = map(cls, live_files(folder, "homes"))
        return [homes for homes in found if homes.facts]

    def rows(self, keys: NDArray[np.uint64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The rows of some blocks, and whether each is one: others are of other datasets."""
        at = np.minimum(np.searchsorted(self._rows["key"], keys), len(self._rows) - 1)
        rows = self._rows[at]
        return rows, rows["key"] == keys

    def next_uses(self, keys: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The steps that read blocks next, on whatever node, from those of this machine."""
        rows, is_known = self.rows(keys)
        me, now = self.facts["me"], int(self._head[0])
        is_home = is_known & (rows["home"] == me)
        is_left = is_known & ~is_home & (rows["before"] == me) & (rows["due"] >= now)
        due = np.where(is_home, rows["next"], np.where(is_left, rows["due"], NEVER))
        is_copy = is_known & ~is_home & ~is_left & (steps >= 0) & (steps < _FAR)
        steps = np.where((is_home | is_left) & (steps < 0), NEVER, steps)
        return np.where(
            is_copy, steps + _FAR, np.where(is_home | is_left, np.minimum(steps, due), steps)
        )
