"""Keys of blocks, and the homes of blocks that nodes share: one kind of the files of loaders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.remote.cache.block_file import is_length
from shardwise.extensions.remote.cache.usage import HEAD
from shardwise.extensions.remote.cache.uses import NEVER

_ODD = 0x9E3779B97F4A7C15
# A block's key; the nodes that hold it from its first read in this epoch on, held it before, and
# have it from an earlier job, -1 for none; and the step up to which this node holds it, else -1.
HOME = np.dtype("<u8,<i4,<i4,<i4,<i8")
HOME.names = "key", "home", "before", "warm", "use"
# Added to the steps of blocks that another node holds: they are evicted before this node's blocks.
_FAR = 1 << 60
# Of the facts of all nodes: 50 bytes each.
_MAX_FACTS_BYTES = 16 << 20


def block_keys(digests: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each block; two of a cache have the same once in 2**64 / blocks."""
    return digests + numbers.astype(np.uint64) * np.uint64(_ODD)


def keys_of_names(names: Sequence[str]) -> NDArray[np.uint64]:
    """The numbers of blocks by the names of their files."""
    digests = np.array([int(name[:16], 16) for name in names], np.uint64)
    return block_keys(digests, np.array([int(name[33:41], 16) for name in names], np.int64))


class Homes:
    """The homes of blocks; `facts` of the nodes are empty until all is there.

    Raises:
        DataError: its loader closes it, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        with as_data_error("the homes of blocks can't be read", url=str(path)):
            self._head = np.memmap(path, np.int64, "r", shape=(2,))
            count = int(self._head[1])
            self.facts: dict[str, Any] = {}
            if not 0 <= count <= (path.stat().st_size - HEAD.size) // HOME.itemsize:
                raise ValueError(f"{count} blocks")
            if count:
                self._rows = np.memmap(path, HOME, "r", offset=HEAD.size, shape=(count,))
                self.facts = _read_facts(path, self._rows)

    def rows(self, keys: NDArray[np.uint64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The rows of some blocks, and whether each is one: others are of other datasets."""
        at = np.minimum(np.searchsorted(self._rows["key"], keys), len(self._rows) - 1)
        return self._rows[at], self._rows["key"][at] == keys

    def next_uses(self, keys: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The steps that read blocks next, on whatever node, from those of this machine."""
        rows, is_known = self.rows(keys)
        use = rows["use"]
        due = np.where(use < self._head[0], NEVER, use)
        own = np.minimum(np.where(steps < 0, NEVER, steps), due)
        copies = np.where((steps >= 0) & (steps < _FAR), steps + _FAR, steps)
        return np.where(is_known, np.where(use < 0, copies, own), steps)


def _read_facts(path: Path, rows: NDArray[Any]) -> dict[str, Any]:
    """The facts of the nodes that rows name; raises an error for others."""
    with path.open("rb") as file:
        file.seek(HEAD.size + rows.nbytes)
        text = file.read(_MAX_FACTS_BYTES + 1)
    facts: dict[str, Any] = json.loads(text) if len(text) <= _MAX_FACTS_BYTES else {}
    addresses, me, token = facts["addresses"], facts["me"], facts["token"]
    if {type(token), *map(type, addresses)} != {str} or not is_length(me):
        raise ValueError(f"{len(text)} bytes of facts")
    for name in ("home", "before", "warm"):
        if rows[name].min() < -1 or rows[name].max() >= len(addresses):
            raise ValueError(f"{name} is no node of {len(addresses)}")
    return facts
