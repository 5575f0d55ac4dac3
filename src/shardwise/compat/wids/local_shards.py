"""The shards of a list that lie on this machine: one source for all of them.

Keeps I6: all are there, and as the list says, before the first sample is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.compat.wids.shards import IndexedTarSamples, samples_of
from shardwise.errors import MissingShardError
from shardwise.sources.tar.index.shard_lists import ListedShard, check_counts
from shardwise.sources.tar.source import TarSource
from shardwise.storage import local_path


class LocalShards:
    """The shards of a list that lie on this machine: one source, opened at the first use."""

    def __init__(self, shards: Sequence[Mapping[str, Any]]) -> None:
        self.shards = shards
        self._urls = frozenset(shard["url"] for shard in shards)
        self._parts: dict[str, IndexedTarSamples] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": None}

    def holds(self, url: str) -> bool:
        """Whether a URL is one of them."""
        return url in self._urls

    def ready(self, url: str) -> IndexedTarSamples | None:
        """The shard of a URL, if they are open."""
        return None if self._parts is None else self._parts.get(url)

    def open(self, url: str) -> IndexedTarSamples:
        """The shard of a URL; opens all of them."""
        return self._opened()[url]

    def read(self, places: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """Samples by (url, row), read together."""
        parts = self._opened()
        source = next(iter(parts.values())).source
        return samples_of(source, [parts[url].first + row for url, row in places])

    def close(self) -> None:
        """Let go of them; they are opened again when they are used."""
        self._parts = None

    def _opened(self) -> dict[str, IndexedTarSamples]:
        # Two threads may both open them: one set stays, and what it costs is kept in the indexes.
        parts = self._parts
        if parts is None:
            paths = [local_path(shard["url"]) for shard in self.shards]
            source = TarSource(paths, accept_unfinished=True)
            if source.urls != paths:
                missing = next(p for p in paths if p not in source.urls)
                raise MissingShardError("the list names a shard that is not there", url=missing)
            claims = [
                ListedShard(path, shard["nsamples"], shard.get("filesize"))
                for path, shard in zip(paths, self.shards, strict=True)
            ]
            check_counts(claims, source.manifest.shards)
            urls = [shard["url"] for shard in self.shards]
            parts = self._parts = dict(zip(urls, IndexedTarSamples.all_of(source), strict=True))
        return parts
