"""What a user names as tar shards: patterns, shard lists and manifest files, each shard once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from shardwise.arguments import path_text
from shardwise.shown import shown, without_query
from shardwise.sources.shard_names import ShardNames
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed import ListedShards, is_manifest_file, manifest_files
from shardwise.sources.tar.index.lost_shards import expand_shards
from shardwise.sources.tar.index.opened import OpenedShards
from shardwise.sources.tar.index.shard_lists import ListedShard, is_shard_list, read_shard_list
from shardwise.storage import StorageOptions, is_local

__all__ = ["Item", "ShardPart", "example_names", "list_shards", "names_of", "split_items"]

# Shards of one origin, opened one by one or listed by a manifest file.
ShardPart: TypeAlias = OpenedShards | ListedShards
# Names of shards that are to be opened, or shards that are known.
Item: TypeAlias = Sequence[str] | ShardPart


def split_items(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], store: IndexStore
) -> list[Item]:
    """Manifest files, and the shards that stand between them; none where there is no manifest.

    Raises:
        ValueError: shard lists (.json) stand beside manifest files, or a shard is named twice.
    """
    items = _items(urls)
    if not any(isinstance(i, str | os.PathLike) and is_manifest_file(os.fspath(i)) for i in items):
        return []
    split: list[Item] = []
    for is_manifest, group in groupby(
        items, lambda item: is_manifest_file(path_text("urls", item))
    ):
        if is_manifest:
            split += [
                ListedShards(url, store)
                for item in group
                for url in manifest_files(os.fspath(item), store.options)
            ]
            continue
        names = list(group)
        if any(is_shard_list(os.fspath(name)) for name in names):
            raise ValueError(
                "urls mixes shard lists (.json) with manifests (.swm): give one or the other"
            )
        split.append(expand_shards(names, options=store.options))
    if len(split) > 1:
        _refuse_repeats(split)
    return split


def _items(urls: Any) -> list[Any]:
    is_many = isinstance(urls, Sequence) and not isinstance(urls, str | bytes)
    return [*urls] if is_many else [urls]


def _refuse_repeats(items: Sequence[Item]) -> None:
    """Refuse a shard that two items name, also where it is written in two ways."""
    seen: set[str] = set()
    for item in items:
        for url in names_of(item):
            file = os.path.abspath(url) if is_local(url) else without_query(url)  # noqa: PTH100 - the text
            if file in seen:
                raise _named_twice(url)
            seen.add(file)


def _named_twice(url: str) -> ValueError:
    return ValueError(f"the shard {shown(url)!r} is listed twice: its samples would be read twice")


def names_of(item: Item) -> Sequence[str]:
    """The names of an item's shards, in order."""
    return item if isinstance(item, Sequence) else item.urls


def example_names(items: Sequence[Item]) -> Iterator[str]:
    """Names of all forms that there are: of a pattern, the first and the last."""
    for item in items:
        names = names_of(item)
        yield from names.examples() if isinstance(names, ShardNames) else names


def list_shards(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    storage: StorageOptions | None,
) -> tuple[list[ListedShard] | None, list[str]]:
    """The entries of shard lists, None where there are none, and the URLs of the shards."""
    items = _items(urls)
    are_lists = [isinstance(i, str | os.PathLike) and is_shard_list(os.fspath(i)) for i in items]
    if not any(are_lists):
        return None, expand_shards(urls, options=storage)
    if not all(are_lists):
        raise ValueError("urls mixes shard lists (.json) with shards: give one or the other")
    listed = [
        shard for item in items for shard in read_shard_list(os.fspath(item), options=storage)
    ]
    names = [shard.url for shard in listed]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _named_twice(twice)
    return listed, names
