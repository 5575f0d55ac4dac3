"""Patterns to shards; an index whose shard is gone is an error.

A directory or a glob stands for the files that lie there, so a shard that was lost would make a
shorter epoch without a word. Its index, if it is still there, shows that there was one.
"""

# URLs are text, as in `shardwise.storage.urls`.
# ruff: noqa: PTH110, PTH112, PTH118, PTH207

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from shardwise.errors import MissingShardError
from shardwise.shown import shown
from shardwise.storage import StorageOptions, expand, is_local, local_path
from shardwise.storage.braces import expand_braces

_SUFFIX = ".swi"


def expand_shards(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The URLs of shards, as `shardwise.storage.url_patterns` gives them.

    Raises:
        MissingShardError: a pattern finds nothing, or an index whose shard is not there.
    """
    shards = expand(urls, options=options)
    known = set(shards)
    for item in [urls] if isinstance(urls, str | os.PathLike) else urls:
        missing = [
            shard
            for shard in _indexed(os.fspath(item), options or StorageOptions())
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


def _indexed(item: str, options: StorageOptions) -> list[str]:
    """The shards, sorted, whose indexes match a directory or a glob; none for names of shards."""
    if not is_local(item):
        return [url for name in expand_braces(item) for url in _remotely_indexed(name, options)]
    path = local_path(item)
    if path.endswith(".tar") and not glob.has_magic(path) and "{" not in path:
        # Ten thousand plain names must not cost a stat on a network file system each.
        return []
    names = [path] if os.path.exists(path) else expand_braces(path)
    indexes: list[str] = []
    for name in names:
        if os.path.isdir(name):
            indexes += glob.glob(os.path.join(glob.escape(name), f"*.tar{_SUFFIX}"))
        elif glob.has_magic(name) and not os.path.exists(name):
            indexes += glob.glob(name + _SUFFIX, recursive=True)
    return [index.removesuffix(_SUFFIX) for index in sorted(indexes)]


def _remotely_indexed(name: str, options: StorageOptions) -> list[str]:
    from shardwise.storage.listing import is_remote_pattern, list_remote
    from shardwise.storage.stores.connect import location_of

    if not is_remote_pattern(name):
        return []
    key = location_of(name).key
    pattern = name if not key or key.endswith("/") else name + _SUFFIX
    try:
        indexes = list_remote(pattern, suffixes=(f".tar{_SUFFIX}",), ignored="\0", options=options)
    except MissingShardError:
        return []
    return [index.removesuffix(_SUFFIX) for index in indexes]
