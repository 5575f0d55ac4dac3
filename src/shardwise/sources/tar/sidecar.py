"""A sidecar of a tar shard: what an extension keeps beside the shard's index.

`TarWriter`, `TarSource` and the commands `index` and `verify` use sidecars through this protocol,
and find them by name in the group "sidecars" of `shardwise.base.plugins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shardwise.base.errors import DataError

if TYPE_CHECKING:
    from shardwise.sources.tar.index.index_store import IndexStore
    from shardwise.sources.tar.index.shard_index import ShardIndex
    from shardwise.sources.tar.problems import Problem
    from shardwise.sources.tar.read.shards import ShardSet
    from shardwise.storage import FilePool


class Sidecar(Protocol):
    """A kind of sidecar."""

    def encode_sample(self, key: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        """Return the blocks of an encoded sample by field; DataError for a bad member."""
        ...

    def publish(
        self,
        url: str,
        index: ShardIndex,
        samples: Sequence[Mapping[str, bytes]],
        *,
        store: IndexStore,
    ) -> str | None:
        """Write a shard's sidecar of what `encode_sample` returned; return where, None without."""
        ...

    def build(self, url: str, *, store: IndexStore) -> tuple[str | None, list[DataError]]:
        """Build the sidecar of an indexed shard; return where, and an error per unusable file."""
        ...

    def find_problems(self, url: str, *, store: IndexStore) -> Iterator[Problem]:
        """Compare a shard with its sidecar, and decode its files."""
        ...

    def open_files(
        self, field: str, shards: Callable[[], ShardSet], *, store: IndexStore, pool: FilePool
    ) -> Any:
        """Open the files of a field, by ranges; ValueError for a field that it never holds."""
        ...
