"""A source over another one: the same samples under the same ids, with other fields."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.dataset.column import version_of
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import ReadsEpochs, Source, directory_of, own_names_of
from shardwise.sources.samples import removed_of


class SameSamples(ReadsEpochs):
    """A base of sources that have the shards and ids of the first one of `sources`."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        self.own_names = {name for source in sources for name in own_names_of(source)}

    def __getattr__(self, name: str) -> Any:
        if name == "media_files":  # goes by ids alone, where the source has it
            return getattr(self.sources[0], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The first source's."""
        return self.sources[0].default_shuffle

    @property
    def manifest(self) -> Manifest:
        """The first source's."""
        return self.sources[0].manifest

    @property
    def directory(self) -> str | None:
        """The first source's."""
        return directory_of(self.sources[0])

    @property
    def removed(self) -> NDArray[np.int64]:
        """The first source's."""
        return removed_of(self.sources[0])

    def version(self) -> str:
        """The versions of all sources."""
        return " ".join(map(version_of, self.sources))

    def owner_of(self, sample_id: int, _field: str | None = None) -> tuple[Source, int]:
        """The first source."""
        return self.sources[0], sample_id
