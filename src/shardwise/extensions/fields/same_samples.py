"""A source over another one: the same samples under the same ids, with other fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from shardwise.dataset.column import version_of
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    ReadsEpochs,
    Source,
    directory_of,
    own_names_of,
)

# What depends on ids alone, where the inner source has it.
_PASSED = frozenset({"costs", "media_files"})


class SameSamples(ReadsEpochs):
    """A base of sources that have the ids, shards and order of `inner`, which a state goes by."""

    def __init__(self, inner: Source, *others: Source) -> None:
        self.inner = inner
        self.sources = (inner, *others)

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED:
            return getattr(self.inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The inner source's."""
        return self.inner.default_shuffle

    @property
    def manifest(self) -> Manifest:
        """The inner source's."""
        return self.inner.manifest

    @property
    def directory(self) -> str | None:
        """The inner source's."""
        return directory_of(self.inner)

    @property
    def own_names(self) -> Collection[str]:
        """Those of all sources."""
        return {name for source in self.sources for name in own_names_of(source)}

    def version(self) -> str:
        """The versions of all sources."""
        return " ".join(map(version_of, self.sources))

    def owner_of(self, sample_id: int) -> tuple[Source, int]:
        """The inner source."""
        return self.inner, sample_id
