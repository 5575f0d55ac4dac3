"""The tar shards that a user names: patterns, shard lists and manifest files, each shard once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from shardwise.base.arguments import path_text
from shardwise.base.shown import without_query
from shardwise.sources.shard_names import ShardNames
from shardwise.sources.tar.index.build import expand_shards
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed_shards import ListedShards, is_manifest_file, manifest_files
from shardwise.sources.tar.index.opened_shards import OpenedShards
from shardwise.sources.tar.index.shard_lists import ListedShard, is_shard_list, read_shard_list
from shardwise.storage.url_patterns import refuse_repeats

# Shards of one origin, opened one by one or listed by a manifest file.
ShardPart: TypeAlias = OpenedShards | ListedShards
# Names of shards that are to be opened, or shards that are known.
Item: TypeAlias = Sequence[str] | ShardPart


def named_items(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    store: IndexStore,
    version: int | str | None = None,
) -> tuple[list[Item], list[ListedShard] | None]:
    """Manifest files and the shards between them; the entries of shard lists, if any."""
    names = [*urls] if isinstance(urls, Sequence) and not isinstance(urls, str | bytes) else [urls]
    kinds = [_kind(name) for name in names]
    if version is not None and set(kinds) != {"manifest"}:
        raise ValueError(f"version={version!r:.40} is one of a manifest file (.swm): give that")
    if "manifest" not in kinds:
        if "list" not in kinds:
            return [expand_shards(urls, options=store.options)], None
        if "shards" in kinds:
            raise ValueError("urls mixes shard lists (.json) with shards: give one or the other")
        listed = [
            shard
            for name in names
            for shard in read_shard_list(os.fspath(name), options=store.options)
        ]
        shards = [shard.url for shard in listed]
        refuse_repeats(shards, by_file=False)
        return [shards], listed
    if "list" in kinds:
        raise ValueError(
            "urls mixes shard lists (.json) with manifests (.swm): give one or the other"
        )
    items: list[Item] = []
    for kind, group in groupby([path_text("urls", name) for name in names], _kind):
        if kind == "shards":
            items.append(expand_shards([*group], options=store.options))
            continue
        for name in group:
            items += [
                ListedShards(url, store, version) for url in manifest_files(name, store.options)
            ]
    if len(items) > 1:
        refuse_repeats(
            (without_query(url) for item in items for url in names_of(item)), by_file=False
        )
    return items, None


def _kind(name: object) -> Literal["manifest", "list", "shards"]:
    """The kind of item that a name is for; `expand_shards` refuses one that is not a text."""
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else name
    if not isinstance(text, str):
        return "shards"
    return "manifest" if is_manifest_file(text) else "list" if is_shard_list(text) else "shards"


def names_of(item: Item) -> Sequence[str]:
    """The names of an item's shards, in order."""
    return item if isinstance(item, Sequence) else item.manifest.urls


def example_names(items: Sequence[Item]) -> Iterator[str]:
    """Names of all forms that there are: of a pattern, the first and the last."""
    for item in items:
        names = names_of(item)
        yield from names.examples() if isinstance(names, ShardNames) else names
