"""Shards of one origin, opened one by one or listed by a manifest file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import FileStat

__all__ = ["ShardPart"]


class ShardPart(Protocol):
    """Shards of one origin: `OpenedShards` or `ListedShards`, which say what the members are."""

    urls: Sequence[str]
    sizes: NDArray[np.int64]
    shard_bytes: NDArray[np.int64]
    fields: tuple[str, ...]
    key_lengths: frozenset[int | None]
    has_digests: bool
    fingerprint: str | None
    unsaved: dict[int, ShardIndex]

    def stat(self, shard: int) -> FileStat:
        """A shard as it was opened, or, where that is its first use, as it is now."""
        ...

    def pins(self) -> Iterator[tuple[str, FileStat]]:
        """The shards that a store names a version of, as far as they are known."""
        ...
