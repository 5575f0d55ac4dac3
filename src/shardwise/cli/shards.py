"""URLS to shards, and a shard with the state of its index.

Nothing is changed: an index that is missing or does not fit is built in memory and not saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.sources.tar.check.problem import Problem, problem_of
from shardwise.sources.tar.index.acceptance import require_end
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed import ListedShards, is_manifest_file, manifest_files
from shardwise.sources.tar.index.lost_shards import expand_shards
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_lists import is_shard_list
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local

__all__ = ["IndexedShard", "list_shards", "open_shard", "wrong_entries"]


@dataclass(frozen=True)
class IndexedShard:
    """One shard with its index.

    Attributes:
        url: the shard.
        index_path: where its index lies, or would be published.
        state: "fresh"; "missing", "stale" or "damaged" if the index can't be used as it is.
        index: the kept index if it is fresh, else one built in memory.
        index_bytes: the size of the kept index; None if it is missing.
    """

    url: str
    index_path: str
    state: str
    index: ShardIndex
    index_bytes: int | None


def list_shards(urls: Sequence[str]) -> list[str]:
    """The shards that patterns, directories, shard lists or manifest files name, in order.

    Raises:
        MissingShardError: a pattern finds nothing.
        DataError: a shard list is malformed.
        ValueError: a shard is named twice.
    """
    # The source reads lists and manifests. It also refuses compressed names, which the commands
    # report shard by shard.
    if not any(is_shard_list(url) or is_manifest_file(url) for url in urls):
        return expand_shards(urls)
    return list(TarSource(urls, accept_unfinished=True).urls)


def open_shard(url: str, index_dir: str | None, *, accept_unfinished: bool) -> IndexedShard:
    """One shard with its index, which is built in memory unless the kept one is fresh.

    Raises:
        DataError: the shard is missing or, where it has no fresh index, damaged; or it has no end,
            and that is not accepted.
        StorageError: it could not be read.
    """
    store = IndexStore(index_dir)
    saved = store.look(url)
    index = saved.index
    path = store.published_path(url) if index is None else index.path
    num_bytes = None if saved.state == "missing" else _num_bytes(path, index)
    if index is None or saved.state == "stale":
        index = build_index(url, accept_unfinished=accept_unfinished)
    elif not accept_unfinished:
        require_end(index.header, url)
    return IndexedShard(url, path, saved.state, index, num_bytes)


def wrong_entries(
    urls: Sequence[str], index_dir: str | None, known: Collection[str | None]
) -> Iterator[Problem]:
    """Shards that are not as the manifest files among the URLS list them.

    Args:
        urls: what the user named.
        index_dir: the directory of the indexes; None for beside the shards.
        known: shards with other problems, which are left out.
    """
    store = IndexStore(index_dir, accept_unfinished=True)
    names = filter(is_manifest_file, urls)
    for manifest in [file for name in names for file in manifest_files(name, store.options)]:
        listed = ListedShards(manifest, store)
        for number, url in enumerate(listed.urls):
            if url in known:
                continue
            try:
                listed.check(number, save=False)
            except ShardwiseError as error:
                yield problem_of(error, url)


def _num_bytes(path: str, index: ShardIndex | None) -> int | None:
    """The size of a kept index."""
    if index is None:
        return Path(path).stat().st_size if is_local(path) else None
    return Path(index.path).stat().st_size if is_local(index.path) else len(index.to_bytes())
