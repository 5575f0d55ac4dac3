"""Counts of a loader: the numbers behind `loader.stats()`.

Batches are counted when they are handed out, in the caller's thread, so that no count is shared;
but a process counts its requests to remote storage as a whole.
"""

from __future__ import annotations

import os
from typing import Any

from shardwise.engine.concurrency import Concurrency
from shardwise.engine.request import Batch
from shardwise.engine.stats.bottleneck import find_bottleneck
from shardwise.engine.stats.shard_times import ShardTimes
from shardwise.engine.stats.stages import Stages
from shardwise.engine.stats.storage_counts import StorageCounts
from shardwise.plan import Plan
from shardwise.samples import Samples

__all__ = ["Counts"]

_NUM_SLOWEST = 3


class Counts:
    """Sums over the batches handed out.

    Args:
        dataset: knows which shard holds a sample.
        pin_memory: whether batches are copied into page-locked memory when they are handed out.
    """

    def __init__(self, dataset: Samples, *, pin_memory: bool = False) -> None:
        self._pin_memory = pin_memory
        # The process that handed out a batch: the first batch of a process imports torch.
        self._warm_pid: int | None = None
        self._shards = ShardTimes(dataset)
        self._last: float | None = None
        self._storage = StorageCounts()
        self.clear()

    def clear(self) -> None:
        """Count from zero."""
        self._samples = self._batches = self._queries = self._ready = 0
        self._skipped = self._replaced = self._dropped = self._padded = 0
        self._wait_s = self._wall_s = 0.0
        self._stages = Stages()
        self._shards.clear()
        self._storage.take()

    def opened(self, seconds: float) -> None:
        """Count the seconds of opening shards and their indexes."""
        self._stages.add("open", seconds)

    def begin(self) -> None:
        """Begin an iterator: the time since the last one does not count."""
        self._last = None

    def add(self, batch: Batch, *, asked_at: float, ready_at: float, returned_at: float) -> None:
        """Count a batch: when it was asked for, ready, and handed out.

        Handing out the first one imports torch and may start an accelerator: those seconds are in
        no stage, and not in the wall time.
        """
        until = returned_at if self._warm_pid == os.getpid() else ready_at
        self._warm_pid = os.getpid()
        self._batches += 1
        self._samples += batch.num_rows
        self._skipped += batch.num_skipped
        self._replaced += batch.num_replaced
        self._wait_s += ready_at - asked_at
        self._wall_s += until - (asked_at if self._last is None else self._last)
        self._last = returned_at
        if batch.num_ready is not None:
            self._queries += 1
            self._ready += batch.num_ready
        self._stages.merge(batch.stages)
        self._stages.add("hand over", until - ready_at)
        for ids, seconds in batch.chunks:
            self._shards.add(ids, seconds)

    def end_epoch(self, plan: Plan) -> None:
        """Count the samples that an epoch dropped and repeated, over all ranks."""
        self._dropped += plan.num_dropped
        self._padded += plan.num_padded

    def to_dict(self, concurrency: Concurrency, *, num_cores: int) -> dict[str, Any]:
        """All counts; see `DataLoader.stats`."""
        storage = self._storage.since(self._stages.storage)
        stats = {
            "samples": self._samples,
            "batches": self._batches,
            "seconds": dict(self._stages.seconds),
            "wait_s": self._wait_s,
            "wall_s": self._wall_s,
            "cpu_s": self._stages.cpu_s,
            "rate": self._samples / self._wall_s if self._wall_s else 0.0,
            "queue_depth": self._ready / self._queries if self._queries else 0.0,
            "slowest_shards": self._shards.slowest(_NUM_SLOWEST),
            "bytes": self._stages.num_bytes,
            "requests": storage["requests"],
            "bytes_fetched": storage["bytes"],
            "retries": storage["retries"],
            "hedges": storage["hedges"],
            "hits": storage["hits"],
            "misses": storage["misses"],
            "evictions": storage["evictions"],
            "damaged": storage["damaged"],
            "degraded": storage["degraded"],
            "waits": storage["waits"],
            "outage_s": storage["outage_ms"] / 1000,
            "skipped": self._skipped,
            "replaced": self._replaced,
            "dropped": self._dropped,
            "padded": self._padded,
            "executor": concurrency.executor,
            "num_workers": concurrency.num_workers,
            "num_threads": concurrency.num_threads,
        }
        bottleneck = find_bottleneck(
            stats, concurrency=concurrency, num_cores=num_cores, pin_memory=self._pin_memory
        )
        return {**stats, "bound_by": bottleneck.bound_by, "verdict": bottleneck.text}
