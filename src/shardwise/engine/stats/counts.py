"""Counts of a loader: the numbers behind `loader.stats()`, and which shard's samples load slowly.

Batches are counted when they are handed out, in the caller's thread, so that no count is shared;
but a process counts its requests to remote storage as a whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.shown import shown
from shardwise.base.stages import Stages
from shardwise.engine.request import Batch, Concurrency
from shardwise.engine.stats.bottleneck import find_bottleneck
from shardwise.plan import Plan
from shardwise.sources.samples import Samples
from shardwise.storage import IO_COUNTS

_NUM_SLOWEST = 3
# Counts of storage that have the same name in `loader.stats()`.
_OF_STORAGE = (
    *("requests", "retries", "hedges", "waits"),
    *("hits", "misses", "evictions", "damaged", "degraded"),
)


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
        self._on_device = self._on_cpu = 0
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
        self._on_device += batch.num_on_device
        self._on_cpu += batch.num_on_cpu
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
            "bytes_fetched": storage["bytes"],
            "bytes_from": {
                "store": storage["bytes"],
                "peers": storage["peer_bytes"],
                "disk": storage["disk_bytes"],
            },
            **{name: storage[name] for name in _OF_STORAGE},
            "outage_s": storage["outage_ms"] / 1000,
            "skipped": self._skipped,
            "replaced": self._replaced,
            "dropped": self._dropped,
            "padded": self._padded,
            "decoded_on_device": self._on_device,
            "decoded_on_cpu": self._on_cpu,
            "executor": concurrency.executor,
            "num_workers": concurrency.num_workers,
            "num_threads": concurrency.num_threads,
            "next_executor": concurrency.next_executor or None,
        }
        bottleneck = find_bottleneck(
            stats, concurrency=concurrency, num_cores=num_cores, pin_memory=self._pin_memory
        )
        return {**stats, "bound_by": bottleneck.bound_by, "verdict": bottleneck.text}


# Chunks are looked up together, this many in one numpy call.
_MAX_CHUNKS = 256
# Samples of a chunk that are looked up, as a sample of all.
_MAX_LOOKED_UP = 8


class ShardTimes:
    """Which shard's samples load slowly: mean seconds a sample, by shard; nothing for one shard.

    A chunk is timed as a whole. Where its samples lie in one shard, as without shuffling, the time
    is that shard's; where they are mixed, each of its shards gets the chunk's mean, and a slow
    shard stands out less. Costs 2 µs a chunk and 16 bytes a shard.
    """

    def __init__(self, dataset: Samples) -> None:
        self._dataset = dataset
        self._chunks: list[tuple[NDArray[np.int64], float]] = []
        self._ends: NDArray[np.int64] | None = None
        self._seconds = self._rows = np.zeros(0)

    def add(self, ids: NDArray[np.int64], seconds: float) -> None:
        """Count a chunk: its ids in the dataset, and the seconds of loading them."""
        if len(ids):
            stride = -(-len(ids) // _MAX_LOOKED_UP)
            # Copied: a view would keep the ids of many steps.
            self._chunks.append((ids[::stride].copy(), seconds / len(ids)))
            if len(self._chunks) >= _MAX_CHUNKS:
                self._fold()

    def clear(self) -> None:
        """Begin again."""
        self._chunks.clear()
        self._seconds, self._rows = np.zeros_like(self._seconds), np.zeros_like(self._rows)

    def slowest(self, count: int) -> list[dict[str, Any]]:
        """The slowest shards of those that were read, slowest first.

        Returns:
            dicts with `url` and `seconds_a_sample`; none where there are less than two shards.
        """
        self._fold()
        seen = np.flatnonzero(self._rows)
        if self._ends is None or len(seen) < 2:
            return []
        means = self._seconds[seen] / self._rows[seen]
        order = np.argsort(-means, kind="stable")[:count]
        return [
            {
                "url": shown(self._dataset.url_of(int(self._ends[shard]) - 1)),
                "seconds_a_sample": mean,
            }
            for shard, mean in zip(seen[order].tolist(), means[order].tolist(), strict=True)
        ]

    def _fold(self) -> None:
        """Add the chunks to the sums."""
        if not self._chunks:
            return
        if self._ends is None:
            self._ends = np.cumsum(self._dataset.shard_sizes)
            self._seconds, self._rows = np.zeros(len(self._ends)), np.zeros(len(self._ends))
        if len(self._ends) > 1:
            lengths = [len(ids) for ids, _ in self._chunks]
            means = np.repeat([mean for _, mean in self._chunks], lengths)
            shards = np.searchsorted(
                self._ends, np.concatenate([ids for ids, _ in self._chunks]), side="right"
            )
            np.add.at(self._seconds, shards, means)
            np.add.at(self._rows, shards, 1.0)
        self._chunks.clear()


class StorageCounts:
    """Differences of the process's counts; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._before = IO_COUNTS.snapshot()

    def take(self) -> dict[str, int]:
        """What was counted since the last `take`, where it is not 0."""
        with self._lock:
            now = IO_COUNTS.snapshot()
            own = self._own(now)
            self._pid, self._before = os.getpid(), now
        return {name: count for name, count in own.items() if count}

    def since(self, others: Mapping[str, int]) -> dict[str, int]:
        """What was counted since the last `take`, and by others beside."""
        with self._lock:
            own = self._own(IO_COUNTS.snapshot())
        return {name: count + others.get(name, 0) for name, count in own.items()}

    def _own(self, now: Mapping[str, int]) -> dict[str, int]:
        # Another process's counts, after a fork or a pickle, say nothing of this one's.
        before = self._before if self._pid == os.getpid() else {}
        return {name: count - before.get(name, 0) for name, count in now.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"_pid": self._pid, "_before": self._before}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_lock": threading.Lock()}
