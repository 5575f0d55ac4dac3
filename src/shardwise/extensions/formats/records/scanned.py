"""Records of files that are scanned for them at the first use, unless an index has them.

The index is a file of columns (`column_file`), beside the file or in the user's cache. It holds the
length and the time or ETag of the file that it was made from, and is valid for no other.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from numpy.typing import NDArray

from shardwise.base.arguments import path_text
from shardwise.base.errors import StaleIndexError
from shardwise.base.parallel import in_threads
from shardwise.base.shown import shown
from shardwise.extensions.formats.records.source import RecordSource
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import MadeOnce
from shardwise.storage import FileStat, expand, is_local, local_path
from shardwise.storage.column_file import ColumnFileError, decode_columns, map_file, write_columns
from shardwise.storage.missing import explain_missing
from shardwise.storage.user_dirs import name_beside, user_cache_dir


def index_directory(index: str | os.PathLike[str] | None) -> str | None:
    """The directory that `index=` names; ValueError for one of another machine."""
    text = None if index is None else path_text("index", index)
    if text is not None and (not is_local(text) or "\0" in local_path(text)):
        raise ValueError(f"index={text!r:.80}: give a directory of this machine")
    return text


@dataclass(frozen=True)
class KeptIndex:
    """The index of one version of a file.

    Attributes:
        kind: the format, as the index names it; its folder in the user's cache.
        suffix: of the index file.
        url: the file that the index is of.
        stat: the file's version.
        directory: where the index is kept; None for beside a local file, or else the user's cache.
    """

    kind: str
    suffix: str
    url: str
    stat: FileStat
    directory: str | None = None

    @property
    def _path(self) -> Path:
        url, folder = self.url, self.directory
        if folder is None and is_local(url):
            return Path(f"{local_path(url)}{self.suffix}")
        inside = user_cache_dir() / self.kind if folder is None else Path(local_path(folder))
        whole = str(Path(local_path(url)).absolute()) if is_local(url) else url.partition("?")[0]
        return inside / f"{name_beside(url, whole)}{self.suffix}"

    @property
    def _version(self) -> dict[str, str]:
        return {
            "format": f"shardwise-{self.kind}",
            "version": "1",
            "num_bytes": str(self.stat.num_bytes),
            "changed": self.stat.etag or str(self.stat.mtime_ns),
        }

    def load(self) -> Mapping[str, NDArray[Any]]:
        """The columns, mapped; none without an index that is whole and of this version."""
        try:
            metadata, columns = decode_columns(map_file(str(self._path)))
        except (OSError, ColumnFileError):
            return {}
        return columns if metadata == self._version else {}

    def save(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write the columns; in a read-only directory each process looks for the records again."""
        try:
            write_columns(self._path, self._version, columns)
        except OSError:
            return


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
