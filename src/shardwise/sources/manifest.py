"""The manifest: ordered shards with exact counts, and the fingerprint of them.

Sample ids are 0..N-1 in manifest order. The fingerprint depends on what the shards are called
(base name), how many samples and bytes they hold, not on where they lie: a state taken from a
local copy resumes on the bucket.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.shown import shown

__all__ = ["Manifest", "Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its URL, and its counts of samples and bytes."""

    url: str
    num_samples: int
    num_bytes: int

    def __repr__(self) -> str:
        return f"Shard({shown(self.url)!r}, {self.num_samples}, {self.num_bytes})"


class Manifest:
    """Ordered shards.

    Attributes:
        shards: the shards, in the order of their samples' ids.
        sizes: int64 `[shards]`, samples a shard.
        ends: int64 `[shards]`, the id after each shard's last.
        num_samples: their sum.

    Args:
        kind: the format, and whatever else distinguishes datasets; or a function that returns it,
            called for the first fingerprint.
        shards: the shards.
    """

    def __init__(self, kind: str | Callable[[], str], shards: Sequence[Shard]) -> None:
        self.kind = kind
        self.shards = tuple(shards)
        self.sizes: NDArray[np.int64] = np.array([s.num_samples for s in shards], dtype=np.int64)
        self.ends: NDArray[np.int64] = np.cumsum(self.sizes, dtype=np.int64)
        self.num_samples = int(self.ends[-1]) if len(shards) else 0

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits."""
        kind = self.kind if isinstance(self.kind, str) else self.kind()
        digest = hashlib.sha256(f"shardwise manifest 1 {kind}\n".encode())
        for shard in self.shards:
            url = shard.url
            if url.startswith(("http://", "https://")):
                # A signature in the query changes every day.
                url = url.partition("?")[0]
            name = url.rstrip("/").rpartition("/")[2]
            digest.update(f"{name}\0{shard.num_samples}\0{shard.num_bytes}\n".encode())
        return digest.hexdigest()[:16]

    def check(self, ids: NDArray[np.int64]) -> None:
        """Refuse ids outside of [0, num_samples).

        Raises:
            IndexError: one is not in [0, num_samples).
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_samples:
            raise IndexError(
                f"sample ids from {ids.min()} to {ids.max()}: they must lie in "
                f"[0, {self.num_samples})"
            )

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find samples by id: `(shard, row)`, each int64 of the shape of `ids`.

        Ids must lie in [0, num_samples); empty shards are skipped.
        """
        # side="right" skips empty shards.
        shard = np.searchsorted(self.ends, ids, side="right")
        return shard, ids - (self.ends[shard] - self.sizes[shard])
