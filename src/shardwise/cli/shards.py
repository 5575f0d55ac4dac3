"""Shards as the commands meet them: what URLS name, and each shard with the state of its index.

Looking changes nothing: an index that is missing or does not fit is made in memory and not saved.
Imports the storage and the tar source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import DataError
from shardwise.sources.tar.build import build_index
from shardwise.sources.tar.dialects import is_shard_list
from shardwise.sources.tar.index import ShardIndex, index_path
from shardwise.sources.tar.source import TarSource
from shardwise.storage import expand, open_file

__all__ = ["SeenShard", "list_shards", "look_at"]


@dataclass(frozen=True)
class SeenShard:
    """One shard and what is known of it.

    Attributes:
        url: the shard.
        index_path: where its index lies, or would lie.
        state: "fresh"; "missing", "stale" or "damaged" if the index can't be used as it is.
        index: the index: from the file if it is fresh, else made for this look.
    """

    url: str
    index_path: str
    state: str
    index: ShardIndex


def list_shards(urls: Sequence[str]) -> list[str]:
    """The shards that patterns, directories or shard lists (JSON) name, in order.

    Raises:
        MissingShardError: a pattern finds nothing.
        DataError: a shard list is malformed.
        ValueError: a shard is named twice.
    """
    # Shard lists are the source's own matter; it also refuses compressed names, which commands
    # rather report shard by shard.
    return list(TarSource(urls).urls) if any(map(is_shard_list, urls)) else expand(urls)


def look_at(url: str, index_dir: str | None) -> SeenShard:
    """Look at one shard and its index.

    Raises:
        DataError: the shard is missing or, where it has no fresh index, damaged.
        StorageError: it could not be read.
    """
    path = index_path(url, index_dir)
    stat = open_file(url).stat()
    try:
        index = ShardIndex.load(path)
    except (FileNotFoundError, NotADirectoryError):
        state = "missing"
    except DataError:
        state = "damaged"
    else:
        if (index.num_bytes, index.mtime_ns) == stat:
            return SeenShard(url, path, "fresh", index)
        state = "stale"
    return SeenShard(url, path, state, build_index(url))
