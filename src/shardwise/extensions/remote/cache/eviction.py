"""Eviction from the cache: the blocks that are wanted last make room, by the plans of loaders.

Runs under the lock of the usage file: parts of dead processes are removed first, then the blocks
that are wanted last. Only files with names of this cache are touched. A block that is being read is
locked by its reader and skipped; an evicted block is truncated before it is unlinked, so its space
is free even where it is open.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.remote.cache.block_file import remove_block
from shardwise.extensions.remote.cache.homes import Homes, keys_of_names
from shardwise.extensions.remote.cache.usage import (
    HEAD,
    CacheEntry,
    Usage,
    disk_space,
    live_files,
    scan_blocks,
    scan_parts,
)
from shardwise.extensions.remote.cache.uses import NEVER, BlockUses


class NextUses:
    """The next reads of a cache's blocks, as its loaders expect them now; needs its lock."""

    def __init__(self, folder: str) -> None:
        self._uses: list[tuple[NDArray[np.int64], BlockUses]] = []
        self._homes = []
        for path in live_files(folder, "homes", remove_dead=True):
            with suppress(DataError):  # its loader closes it
                homes = Homes(path)
                self._homes += [homes] if homes.facts else []
        for path in live_files(folder, "uses", remove_dead=True):
            with suppress(OSError, ValueError):  # as above, or it has no head
                head = np.memmap(path, np.int64, "r", shape=(2,))
                count = int(head[1])
                if 0 < count <= (path.stat().st_size - HEAD.size) // 16:
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


class Eviction:
    """The blocks in the order of their eviction, in a heap that is rebuilt when it is out of date.

    Blocks that no loader expects come first, the least recently used of them before others; then
    those whose next use is farthest (Belady).
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._blocks = f"{folder}/blocks"
        # Sorted by two numbers: 0 and the time of the last use, or 1 and the negative next use.
        self._heap: list[tuple[int, int, CacheEntry]] = []
        # The heap lacks blocks that were published after this.
        self._scanned_ns = 0
        self._next_uses: NextUses  # from the first scan on
        # Blocks may be removed before the next uses of others, which are read meanwhile, count.
        self._num_left = 0

    def make_room(self, usage: Usage, space: int, limit: int, *, name: str) -> int:
        """Evict until `space` bytes are free for a block; returns the number of evicted ones.

        Ends early if nothing more can be evicted, or if all other blocks are used before the second
        use of this one: see `usage.num_bytes`.
        """
        evicted = 0
        is_fresh = False
        while usage.num_bytes + space > limit:
            if not self._heap or (not is_fresh and self._is_stale):
                if is_fresh:
                    break
                self._rescan(usage)
                is_fresh = True
                continue
            is_expected, order, entry = heapq.heappop(self._heap)
            used_ns = _used_ns(f"{self._blocks}/{entry.name}")
            if used_ns is None:
                continue
            now = _order(entry._replace(used_ns=used_ns), self._step_of(entry.name))
            if now[:2] != (is_expected, order):
                # Used since the scan.
                heapq.heappush(self._heap, now)
                continue
            self._num_left -= 1
            if is_expected and -order < NEVER and -order <= self._step_of(name, skip=1):
                heapq.heappush(self._heap, now)
                break  # read past the cache: the cached blocks are used sooner
            freed = remove_block(f"{self._blocks}/{entry.name}")
            usage.num_bytes -= freed
            evicted += bool(freed)
        usage.evictions += evicted
        return evicted

    @property
    def _is_stale(self) -> bool:
        """Whether blocks may come before the heap's first one that are not where they belong."""
        is_expected, order, _ = self._heap[0]
        # Used after the scan: a newer block may be older.
        return self._num_left < 0 or (not is_expected and order > self._scanned_ns)

    def _rescan(self, usage: Usage) -> None:
        self._scanned_ns = time.time_ns()
        sweep_parts(self._folder, usage)
        self._next_uses = NextUses(self._folder)
        entries = list(scan_blocks(self._folder))
        steps = self._next_uses.of([entry.name for entry in entries]).tolist()
        self._heap = [_order(entry, step) for entry, step in zip(entries, steps, strict=True)]
        heapq.heapify(self._heap)
        self._num_left = len(entries) // 8
        usage.num_bytes = disk_space(self._folder)

    def _step_of(self, name: str, *, skip: int = 0) -> int:
        return int(self._next_uses.of([name], skip=skip)[0])


def _order(entry: CacheEntry, step: int) -> tuple[int, int, CacheEntry]:
    return (0, entry.used_ns, entry) if step < 0 else (1, -step, entry)


def sweep_parts(folder: str, usage: Usage) -> int:
    """Remove the parts of dead processes; returns their number."""
    swept = 0
    for entry in list(scan_parts(folder)):
        freed = remove_block(f"{folder}/parts/{entry.name}")
        usage.num_bytes -= freed
        swept += bool(freed)
    return swept


def _used_ns(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_atime_ns  # noqa: PTH116
    except FileNotFoundError:
        return None
