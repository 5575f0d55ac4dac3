"""The index of a shard that is being written, made of its members as they are added.

Nothing is read back: names, offsets and sizes are what was written. It is the index that a scan of
the finished shard would give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from shardwise.sources.tar.index.build import index_of
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.scan.members import Members
from shardwise.sources.tar.scan.samples import SampleTable
from shardwise.storage import FileStat

__all__ = ["Member", "WrittenIndex"]

# A member's name, where its payload begins, and the payload's bytes.
Member: TypeAlias = tuple[bytes, int, int]
# Members that are indexed at a time: as many as a scan meets in 1 MiB, at most.
_CHUNK = 1024


class WrittenIndex:
    """Collects the members of one shard, in their order.

    Args:
        url: the shard.
    """

    def __init__(self, url: str) -> None:
        self._table = SampleTable(url, Counter())
        self._pending: list[Member] = []

    def add(self, members: Sequence[Member], at: int) -> None:
        """Add members that follow one another.

        Args:
            members: with offsets that count from `at`.
            at: a byte of the shard.

        Raises:
            DataError: there are too many different fields.
        """
        self._pending += [(name, offset + at, size) for name, offset, size in members]
        if len(self._pending) >= _CHUNK:
            self._flush()

    def finish(self, stat: FileStat) -> ShardIndex:
        """The index of the whole shard.

        Args:
            stat: the version of the shard's file.

        Raises:
            DataError: the members are no set of whole samples.
        """
        self._flush()
        return index_of(self._table, stat, has_end=True)

    def _flush(self) -> None:
        if self._pending:
            self._table.add(_members_of(*zip(*self._pending, strict=True)))
            self._pending = []


def _members_of(
    names: Sequence[bytes],
    offsets: Sequence[int],
    sizes: Sequence[int],
) -> Members:
    """Members as arrays; at least one, and none with NUL in its name."""
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    width = -(-int(lengths.max()) // 8) * 8
    packed = np.array(names, f"S{width}").view(np.uint8).reshape(len(names), width)
    return Members(packed, lengths, np.array(offsets, np.int64), np.array(sizes, np.int64))
