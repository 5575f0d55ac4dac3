"""Counts of a loader: the numbers behind `loader.stats()`, and which shard's samples load slowly.

Batches are counted when they are returned, in the caller's thread, so that no count is shared;
but a process counts its requests to remote storage as a whole.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import Stages
from shardwise.base.shown import shown
from shardwise.engine.request import Batch, Concurrency
from shardwise.engine.stats.bottleneck import find_bottleneck
from shardwise.plan import Plan
from shardwise.sources.samples import Samples
from shardwise.storage import IO_COUNTS

# [milliseconds, count] of each bucket that holds waits, ascending.
Pairs = Sequence[Any]
_GAMMA, _LEAST_MS, _LAST = 1.0095 / 0.9905, 0.001, 1219
_BUCKETS_A_LOG = 1 / math.log(_GAMMA)


class WaitHistogram:
    """Counts of waits in log-spaced buckets: percentiles within 1 %, from 1 µs to 3 hours.

    One thread adds, any thread reads. Source: the buckets of DDSketch (Masson, Rim and Lee, VLDB
    2019); there are 1,220 at most.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        ratio = seconds * (1000 / _LEAST_MS)
        bucket = min(_LAST, math.ceil(math.log(ratio) * _BUCKETS_A_LOG)) if ratio > 1 else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def to_pairs(self) -> Pairs:
        """The counts, by four digits of the middle of each bucket."""
        middle = _LEAST_MS * 2 / (_GAMMA + 1)
        counts = sorted(self._counts.copy().items())
        return [[float(f"{middle * _GAMMA**bucket:.4g}"), count] for bucket, count in counts]


def subtract(ours: Pairs, theirs: Pairs) -> Pairs:
    """The waits of one histogram that an earlier one does not have."""
    earlier = dict(theirs)
    rest = [[at, count - earlier.get(at, 0)] for at, count in ours]
    return [pair for pair in rest if pair[1] > 0]


def percentiles(pairs: Pairs) -> dict[str, float]:
    """The milliseconds that 50, 95 and 99 % of waits do not exceed; 0 without any."""
    found, total = {"p50": 0.0, "p95": 0.0, "p99": 0.0}, sum(count for _, count in pairs)
    for name in found:
        rank = int(name[1:]) / 100 * (total - 1)
        for found[name], count in pairs:
            rank -= count
            if rank < 0:
                break
    return found


_NUM_SLOWEST = 3
_SUMS = (
    *("samples", "batches", "queries", "ready", "wait_s", "wall_s", "skipped", "replaced"),
    *("dropped", "padded", "decoded_on_device", "decoded_on_cpu"),
)
# Counts of storage that have the same name in `loader.stats()`.
_OF_STORAGE = (
    *("requests", "retries", "hedges", "waits"),
    *("hits", "misses", "evictions", "damaged", "degraded"),
)


class Counts:
    """Sums over the batches returned; with `pin_memory` into page-locked memory."""

    def __init__(self, dataset: Samples, *, pin_memory: bool = False) -> None:
        self._pin_memory = pin_memory
        # The process that returned a batch: the first batch of a process imports torch.
        self._warm_pid: int | None = None
        self._shards = ShardTimes(dataset)
        self._last: float | None = None
        self._storage = StorageCounts()
        # When the batch that is awaited was requested.
        self.asked_at: float | None = None
        # Called with each batch and its times, as `add` is.
        self.listener: Callable[..., None] | None = None
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._waits = WaitHistogram()
        self._stages = Stages()
        # The sums at the last reset.
        self._base: Mapping[str, Any] = {}

    def clear(self) -> None:
        """Count from zero; callers of `since` still get what they have not seen."""
        self._base = self._totals()
        self._shards.clear()

    def opened(self, seconds: float) -> None:
        """Count the seconds of opening shards and their indexes."""
        self._stages.add("open", seconds)

    def begin(self) -> None:
        """Start an iterator: the time since the last one does not count."""
        self._last = None

    def add(self, batch: Batch, *, asked_at: float, ready_at: float, returned_at: float) -> None:
        """Count a batch: when it was requested, ready, and returned."""
        # The first one imports torch and may start an accelerator: not in the wall time.
        until = returned_at if self._warm_pid == os.getpid() else ready_at
        self._warm_pid = os.getpid()
        self.asked_at = None
        sums = self._sums
        sums["batches"] += 1
        sums["samples"] += batch.num_rows
        sums["skipped"] += batch.num_skipped
        sums["replaced"] += batch.num_replaced
        sums["decoded_on_device"] += batch.num_on_device
        sums["decoded_on_cpu"] += batch.num_on_cpu
        sums["wait_s"] += ready_at - asked_at
        self._waits.add(ready_at - asked_at)
        sums["wall_s"] += until - (asked_at if self._last is None else self._last)
        self._last = returned_at
        sums["queries"] += batch.num_ready is not None
        sums["ready"] += batch.num_ready or 0
        self._stages.merge(batch.stages)
        self._stages.add("hand over", until - ready_at)
        for ids, seconds in batch.chunks:
            self._shards.add(ids, seconds)
        if self.listener is not None:
            self.listener(batch, asked_at=asked_at, ready_at=ready_at, returned_at=returned_at)

    def end_epoch(self, plan: Plan) -> None:
        """Count the samples that an epoch dropped and repeated, over all ranks."""
        self._sums["dropped"] += plan.num_dropped
        self._sums["padded"] += plan.num_padded

    def to_dict(
        self, concurrency: Concurrency, *, num_cores: int, since: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """All counts, for any thread; see `DataLoader.stats`."""
        asked_at, totals = self.asked_at, self._totals()
        counts = difference(totals, self._base if since is None else _seen(since, totals))
        wall_s, queries, ready = counts["wall_s"], counts.pop("queries"), counts.pop("ready")
        stats = {
            **counts,
            "bytes_from": {"store": 0, "peers": 0, "disk": 0, **counts["bytes_from"]},
            "wait_ms": percentiles(counts["wait_ms"]),
            "waiting_s": 0.0 if asked_at is None else time.perf_counter() - asked_at,
            "rate": counts["samples"] / wall_s if wall_s else 0.0,
            "queue_depth": ready / queries if queries else 0.0,
            "slowest_shards": self._shards.slowest(_NUM_SLOWEST),
            "executor": concurrency.executor,
            "num_workers": concurrency.num_workers,
            "num_threads": concurrency.num_threads,
            "next_executor": concurrency.next_executor or None,
            "totals": totals,
        }
        bottleneck = find_bottleneck(
            stats, concurrency=concurrency, num_cores=num_cores, pin_memory=self._pin_memory
        )
        return {**stats, "bound_by": bottleneck.bound_by, "verdict": bottleneck.text}

    def _totals(self) -> dict[str, Any]:
        """All sums since the loader was made, resets or not."""
        storage = self._storage.since(self._stages.storage)
        return {
            **self._sums,
            "seconds": self._stages.seconds.copy(),
            "wait_ms": self._waits.to_pairs(),
            "cpu_s": self._stages.cpu_s,
            "missing": self._stages.missing.copy(),
            "bytes": self._stages.num_bytes,
            "bytes_fetched": storage["bytes"],
            "bytes_from": {
                "store": storage["bytes"],
                "peers": storage["peer_bytes"],
                "disk": storage["disk_bytes"],
            },
            **{name: storage[name] for name in _OF_STORAGE},
            "outage_s": storage["outage_ms"] / 1000,
        }


def _seen(since: Mapping[str, Any], totals: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sums up to earlier stats, which are {} or this loader's."""
    if not isinstance(since, Mapping):
        raise TypeError(f"since={since!r:.80}: give earlier stats() of this loader, or {{}}")
    seen: Mapping[str, Any] = since.get("totals", {})
    if (since and not seen) or seen.get("batches", 0) > totals["batches"]:
        raise ValueError(
            f"since= is no earlier stats() of this loader: it has {seen.get('batches')} batches, "
            f"and the loader {totals['batches']}"
        )
    return seen


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The counts between two sums; nothing below 0, as another process's counts may be."""

    def between(own: Any, other: Any) -> Any:
        if isinstance(own, Mapping):
            return {name: each for name, each in difference(own, other).items() if each}
        return subtract(own, other) if isinstance(own, list) else max(0, own - other)

    return {
        name: between(own, before[name]) if name in before else own for name, own in now.items()
    }


# Chunks are looked up together, this many in one numpy call.
_MAX_CHUNKS = 256
# Samples of a chunk that are looked up, as a sample of all.
_MAX_LOOKED_UP = 8


class ShardTimes:
    """Which shard's samples load slowly: mean seconds per sample, by shard; nothing for one shard.

    A chunk is timed as a whole, and each of its shards gets the mean: 2 µs a chunk.
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
                self._seconds, self._rows = self._fold_chunks()
                self._chunks.clear()

    def clear(self) -> None:
        """Start again."""
        self._chunks.clear()
        self._seconds, self._rows = np.zeros_like(self._seconds), np.zeros_like(self._rows)

    def slowest(self, count: int) -> list[dict[str, Any]]:
        """`url` and `seconds_a_sample` of the slowest shards that were read; none of one shard."""
        sums, counts = self._fold_chunks()
        seen = np.flatnonzero(counts)
        if self._ends is None or len(seen) < 2:
            return []
        means = sums[seen] / counts[seen]
        order = np.argsort(-means, kind="stable")[:count]
        return [
            {
                "url": shown(self._dataset.url_of(int(self._ends[shard]) - 1)),
                "seconds_a_sample": mean,
            }
            for shard, mean in zip(seen[order].tolist(), means[order].tolist(), strict=True)
        ]

    def _fold_chunks(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The sums with the chunks; changes none of them, since any thread may call this."""
        chunks = self._chunks.copy()
        if chunks and self._ends is None:
            ends = np.cumsum(self._dataset.shard_sizes)
            self._seconds, self._rows = np.zeros(len(ends)), np.zeros(len(ends))
            self._ends = ends
        if self._ends is None or len(self._ends) == 1 or not chunks:
            return self._seconds, self._rows
        seconds, rows = self._seconds.copy(), self._rows.copy()
        means = np.repeat([mean for _, mean in chunks], [len(ids) for ids, _ in chunks])
        shards = np.searchsorted(self._ends, np.concatenate([i for i, _ in chunks]), side="right")
        np.add.at(seconds, shards, means)
        np.add.at(rows, shards, 1.0)
        return seconds, rows


class StorageCounts:
    """Differences of the process's counts; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._before = IO_COUNTS.snapshot()

    def take(self) -> dict[str, int]:
        """Take the counts since the last `take`, where they are not 0."""
        with self._lock:
            now = IO_COUNTS.snapshot()
            own = self._own(now)
            self._pid, self._before = os.getpid(), now
        return {name: count for name, count in own.items() if count}

    def since(self, others: Mapping[str, int]) -> dict[str, int]:
        """The counts since the last `take`, plus those of others."""
        with self._lock:
            own = self._own(IO_COUNTS.snapshot())
        return {name: count + others.get(name, 0) for name, count in own.items()}

    def _own(self, now: Mapping[str, int]) -> dict[str, int]:
        # Another process's counts, after a fork or a pickle, do not apply to this one.
        before = self._before if self._pid == os.getpid() else {}
        return {name: count - before.get(name, 0) for name, count in now.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"_pid": self._pid, "_before": self._before}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_lock": threading.Lock()}
