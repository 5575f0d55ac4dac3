"""Patterns to shards; an index whose shard is gone is an error.

A directory or a glob stands for the files that lie there, so a shard that was lost would silently
make a shorter epoch. Its index, if it is still there, shows that there was one.
"""

# URLs are text, as in `shardwise.storage.urls`.
# ruff: noqa: PTH110, PTH112

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from contextlib import suppress

from shardwise.base.errors import MissingShardError
from shardwise.base.shown import shown
from shardwise.storage import StorageOptions, expand, is_local, local_path
from shardwise.storage.braces import expand_braces
from shardwise.storage.listing import is_remote_pattern

_SUFFIX = ".swi"


def expand_shards(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The URLs of shards, as `shardwise.storage.url_patterns` gives them."""
    shards = expand(urls, options=options)
    known = set(shards)
    for item in [urls] if isinstance(urls, str | os.PathLike) else urls:
        missing = [
            shard
            for shard in _list_indexed_shards(os.fspath(item), options)
            if shard not in known and not (is_local(shard) and os.path.exists(shard))
        ]
        if missing:
            raise MissingShardError(
                f"{len(missing)} indexes lie there without their shards, the first is "
                f"{shown(missing[0]) + _SUFFIX!r}: put the shards back, or, if they are not to be "
                "read any more, remove the index files or name the other shards one by one",
                url=missing[0],
            )
    return shards


def _list_indexed_shards(item: str, options: StorageOptions | None) -> list[str]:
    """The shards, sorted, whose indexes match a directory or a glob; none for names of shards."""
    path = local_path(item) if is_local(item) else item
    if path.endswith(".tar") and not glob.has_magic(path) and "{" not in path:
        # Ten thousand plain names must not cost a stat on a network file system each.
        return []
    indexes: list[str] = []
    for name in [path] if is_local(item) and os.path.exists(path) else expand_braces(path):
        pattern = _index_pattern(name)
        if pattern is not None:
            with suppress(MissingShardError):
                indexes += expand(pattern, suffixes=(f".tar{_SUFFIX}",), options=options)
    return [index.removesuffix(_SUFFIX) for index in sorted(indexes)]


def _index_pattern(name: str) -> str | None:
    """A directory as it is, a glob with the suffix of indexes; None for the name of a shard."""
    if is_local(name):
        is_directory = os.path.isdir(name)
        is_pattern = is_directory or (glob.has_magic(name) and not os.path.exists(name))
    else:
        is_directory = name.endswith("/") or "/" not in name.partition("://")[2]
        is_pattern = is_remote_pattern(name)
    if not is_pattern:
        return None
    return name if is_directory else name + _SUFFIX
