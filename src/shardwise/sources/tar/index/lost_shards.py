"""Patterns to shards; an index whose shard is gone is an error.

A directory or a glob stands for the files that lie there, so a shard that was lost would silently
make a shorter epoch. Its index, if it is still there, shows that there was one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardwise.base.errors import MissingShardError
from shardwise.base.shown import shown
from shardwise.storage import StorageOptions, expand, is_local
from shardwise.storage.listing import INDEX


def expand_shards(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The URLs of shards, as `shardwise.storage.url_patterns` gives them, by one listing each."""
    items = urls if isinstance(urls, Sequence) and not isinstance(urls, str) else [urls]
    if any(str(item).endswith(INDEX) for item in items):
        return expand(urls, options=options)
    found = expand(urls, suffixes=(".tar", f".tar{INDEX}"), options=options)
    shards = [url for url in found if not url.endswith(INDEX)]
    known = set(shards)
    indexed = [url.removesuffix(INDEX) for url in found if url.endswith(INDEX)]
    missing = [
        shard
        for shard in indexed
        if shard not in known and not (is_local(shard) and os.path.exists(shard))  # noqa: PTH110
    ]
    if missing:
        raise MissingShardError(
            f"{len(missing)} indexes lie there without their shards, the first is "
            f"{shown(missing[0]) + INDEX!r}: put the shards back, or, if they are not to be "
            "read any more, remove the index files or name the other shards one by one",
            url=missing[0],
        )
    return shards
