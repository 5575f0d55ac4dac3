"""Which shard's samples load slowly: mean seconds a sample, by shard.

A chunk is timed as a whole. Where its samples lie in one shard, as without shuffling, the time is
that shard's; where they are mixed, each of its shards gets the chunk's mean, and a slow shard
stands out less. Costs 2 µs a chunk and 16 bytes a shard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.samples import Samples
from shardwise.shown import shown

__all__ = ["ShardTimes"]

# Chunks are looked up together, this many in one numpy call.
_MAX_CHUNKS = 256
# Samples of a chunk that are looked up, as a sample of all.
_MAX_LOOKED_UP = 8


class ShardTimes:
    """Sums by shard; nothing where there is only one shard to compare."""

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
