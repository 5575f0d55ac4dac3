"""The blocks of a cache that its loaders expect to read, and when: one file per loader and rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.remote.cache.homes import HEAD, Homes, keys_of_names, live_files
from shardwise.plan.uses import BlockUses


class NextUses:
    """The next reads of a cache's blocks, as its loaders expect them now; needs its lock."""

    def __init__(self, folder: str) -> None:
        self._uses: list[tuple[NDArray[np.int64], BlockUses]] = []
        self._homes = []
        for path in live_files(folder, "homes", remove_dead=True):
            with suppress(OSError):  # its loader closes it
                homes = Homes(path)
                self._homes += [homes] if homes.facts else []
        for path in live_files(folder, "uses", remove_dead=True):
            with suppress(OSError):
                head = np.memmap(path, np.int64, "r", shape=(2,))
                count = int(head[1])
                if count > 0:
                    data = np.memmap(path, np.int64, "r", offset=HEAD.size, shape=(2, count))
                    self._uses.append((head, BlockUses(data[0].view(np.uint64), data[1])))

    def of(self, names: Sequence[str], *, skip: int = 0) -> NDArray[np.int64]:
        """The step that next reads each of some named blocks; -1 if no loader knows of its file.

        `skip` leaves out so many steps of this machine's.
        """
        keys, found = keys_of_names(names), np.full(len(names), -1, np.int64)
        for head, uses in self._uses:
            steps = uses.next_steps(keys, int(head[0]), skip=skip)
            at = np.minimum(np.searchsorted(uses.blocks, keys), len(uses.blocks) - 1)
            steps[uses.blocks[at] != keys] = -1
            is_first = (found < 0) | ((steps >= 0) & (steps < found))
            found[is_first] = np.maximum(steps, -1)[is_first]
        for homes in self._homes:
            found = homes.next_uses(keys, found)
        return found
