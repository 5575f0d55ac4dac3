"""The reads of a pass, of which caches learn before they are made.

They are a pure function of the plan, the counts of the shards, and the length of a block: so caches
evict the block that is used last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.uses import block_uses, blocks_by_share
from shardwise.plan import Plan
from shardwise.sources.samples import Samples, SourcedSamples
from shardwise.storage.file_pool import FilePool

_logger = logging.getLogger("shardwise")


class ExpectedReads:
    """The reads of this epoch from where it is, and of the next one.

    They are computed beside the program, 0.5 µs a sample of this rank: at once if a cache has no
    room for all shards, else after any process has missed a block of it. Until then a cache evicts
    the block that was used least recently.

    Args:
        samples: what is read.
        plan: of what is left of an epoch.
        caches: those that the samples are read through, each with a pool of its files.
        epoch: the epoch.
        rank: this process's.
        num_local: ranks of this machine, which share its caches.

    Attributes:
        first_step: the number of the pass's first step over all epochs.
        moves: functions to call with the number of each step after it was read.
    """

    def __init__(
        self,
        samples: Samples,
        plan: Plan,
        caches: Mapping[Cache, FilePool],
        *,
        epoch: int,
        rank: int,
        num_local: int,
    ) -> None:
        self._samples, self._plan, self._epoch = samples, plan, epoch
        self._rank, self._num_local = rank, num_local
        whole = plan.resumed(0, epoch=epoch).num_steps
        self.first_step = (epoch + 1) * whole - plan.num_steps
        self.moves: list[Callable[[int], object]] = [self._look]
        self._expected: list[Any] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # What caches had counted, as long as none of it has changed.
        self._unchanged = {cache: cache.changes for cache in caches}
        for cache, pool in caches.items():
            if cache.peers is not None:
                of_epoch = plan.resumed(plan.start, epoch=epoch)
                self._expected += cache.peers.share(samples, pool, of_epoch, rank, self.first_step)
        self.moves += [each.move for each in self._expected]
        num_bytes = samples.source.manifest.shard_bytes.sum()  # type: ignore[attr-defined]
        if any(cache.settings.max_bytes < num_bytes for cache in caches):
            self._start_computing()

    def _look(self, step: int) -> None:
        del step
        if any(cache.changes != before for cache, before in self._unchanged.items()):
            self._start_computing()

    def _start_computing(self) -> None:
        self.moves = [move for move in self.moves if move != self._look]
        threading.Thread(
            target=self._compute, args=([*self._unchanged],), name="shardwise-uses", daemon=True
        ).start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            for each in self._expected:
                each.close()
            self._expected, self.moves = [], []

    def _compute(self, caches: list[Cache]) -> None:
        samples: SourcedSamples = self._samples  # type: ignore[assignment]
        manifest = samples.source.manifest
        indices = samples.transforms.indices  # type: ignore[attr-defined]
        if len(set(manifest.urls)) < len(manifest.urls):
            return  # shards are parts of files, such as row groups, at places that are not known
        for cache in caches:
            block_bytes = cache.settings.block_bytes
            # A shard of unknown length has one block, which no file has.
            num_blocks = np.maximum(1, -(-manifest.shard_bytes // block_bytes))
            blocks_of = blocks_by_share(manifest.sizes, num_blocks, indices)
            epochs = (self._epoch, self._epoch + 1)
            uses = block_uses(self._plan, blocks_of, epochs=epochs, ranks=(self._rank,))
            num_open = min(
                uses.most_open(self._plan.num_steps) * self._num_local, int(num_blocks.sum())
            )
            room, most = cache.settings.max_bytes, num_open * block_bytes
            if most > room and self._rank == 0:
                _logger.warning(
                    "the cache in %r has room for %.1f MB, and this order reads about %.1f MB of "
                    "blocks at a time on this machine, of which some will be fetched again: give "
                    "CacheSettings(..., max_bytes=%d)",
                    cache.settings.directory,
                    room / 1e6,
                    most / 1e6,
                    int(1.1 * most) + (1 << 20),
                )
            ends = np.cumsum(num_blocks)
            files = np.searchsorted(ends, uses.blocks, side="right")
            numbers = uses.blocks.astype(np.int64) - (ends - num_blocks)[files]
            if self._closed.is_set():
                return
            expected = cache.expect(manifest.urls, files, numbers, uses.steps + self.first_step)
            if expected is None:
                continue
            with self._lock:
                if self._closed.is_set():
                    expected.close()
                    return
                self._expected.append(expected)
                self.moves = [*self.moves, expected.move]
