"""Records of files that are scanned for them at the first use, unless an index has them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from shardwise.base.errors import StaleIndexError
from shardwise.base.parallel import in_threads
from shardwise.base.shown import shown
from shardwise.extensions.formats.records.kept_index import index_directory
from shardwise.extensions.formats.records.source import RecordSource
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import MadeOnce
from shardwise.storage import expand
from shardwise.storage.missing import explain_missing

_THREADS = 16
# The result of scanning a file.
_Found = TypeVar("_Found")


class ScannedSource(RecordSource, Generic[_Found]):
    """The files of `urls`, each scanned once per process; the index directory is `index`."""

    _kind: ClassVar[str]

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        suffixes: tuple[str, ...],
        index: str | os.PathLike[str] | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.urls = expand(urls, suffixes=suffixes, options=options["storage"])
        self._index_dir = index_directory(index)
        self._found: MadeOnce[list[_Found]] = MadeOnce()

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} files" if len(self.urls) > 1 else ""
        return f"{type(self).__name__}({shown(self.urls[0])!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was found: other processes load the index files."""
        return self.__dict__ | {"_found": MadeOnce()}

    @cached_property
    def manifest(self) -> Manifest:
        """The files, in their order; the first use scans those without an index."""
        found = zip(self.urls, self._scan_files(), strict=True)
        return Manifest(self._kind, [self._shard_of(url, each) for url, each in found])

    @abstractmethod
    def _scan(self, url: str) -> _Found:
        """Find the records of a file, which is pinned."""

    @abstractmethod
    def _shard_of(self, url: str, found: _Found) -> Shard:
        """The counts of a file."""

    def _scan_files(self) -> list[_Found]:
        with explain_missing(self.urls):
            return self._found.get(lambda: list(in_threads(self._scan, self.urls, _THREADS)))

    def _found_in(self, number: int) -> _Found:
        """The result of this process's scan of a file, which must be the one of the manifest."""
        shard, found = self.manifest.shards[number], self._scan_files()[number]
        now = self._shard_of(shard.url, found)
        if now != shard:
            raise StaleIndexError(
                f"the file was replaced while it was in use: it had {shard.num_samples} records "
                f"in {shard.num_bytes} bytes, and has {now.num_samples} in {now.num_bytes}; open "
                "the dataset anew, and begin the epoch anew",
                url=shard.url,
            )
        return found
