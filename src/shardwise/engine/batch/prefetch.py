"""Prefetch depth: how many batches are ready or in progress, bounded in number and in bytes."""

from __future__ import annotations

from shardwise.engine.batch.partial_batch import PartialBatch

__all__ = ["prefetch_depth"]

# Batches that are ready or in progress hold at most this much memory, but two are always allowed.
_MAX_BYTES = 2 << 30


def prefetch_depth(num_prefetch: int, batch: PartialBatch) -> int:
    """`num_prefetch`, reduced so that batches like this one stay under 2 GiB; at least 2."""
    return max(2, min(num_prefetch, _MAX_BYTES // max(1, batch.num_bytes)))
