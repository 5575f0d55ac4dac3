"""Records of files that are scanned for them at the first use, unless an index has them.

The index is a file of columns (`column_file`), beside the file or in the user's cache. It holds the
length and the time or ETag of the file that it was made from, and is valid for no other.
"""

from __future__ import annotations

import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import path_text
from shardwise.base.errors import StaleIndexError
from shardwise.base.parallel import in_threads
from shardwise.extensions.formats.records.source import RecordSource
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import MadeOnce
from shardwise.storage import FileStat, expand, is_local, local_path
from shardwise.storage.column_file import (
    ColumnFileError,
    decode_columns,
    encode_columns,
    map_file,
    write_columns,
)
from shardwise.storage.found_once import found_once, has_other_ranks, made_once
from shardwise.storage.missing import explain_missing
from shardwise.storage.user_dirs import name_beside, user_cache_dir


def index_directory(index: str | os.PathLike[str] | None) -> str | None:
    """The path of the directory that `index=` names; ValueError for one of another machine."""
    text = "" if index is None else path_text("index", index)
    if not is_local(text):
        raise ValueError(f"index={text!r:.80}: give a directory of this machine")
    return None if index is None else local_path(text)


@dataclass(frozen=True)
class KeptIndex:
    """The index of one version of a file; without a directory beside it, or in the user's cache."""

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
        inside = user_cache_dir() / self.kind if folder is None else Path(folder)
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


class Found(NamedTuple):
    """A file's version, its compression, and its records' positions: int64, none if left out."""

    stat: FileStat
    codec: str | None
    places: NDArray[np.int64]


class ScannedSource(RecordSource):
    """The files of `urls`, each scanned once per process; the index directory is `index`."""

    _kind: ClassVar[str]

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        suffixes: tuple[str, ...],
        index: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.urls = expand(urls, suffixes=suffixes, options=options.get("storage"))
        self._index_dir = index_directory(index)
        self._found: MadeOnce[list[Found]] = MadeOnce()
        # What another process found.
        self._known: Sequence[Found | None] = [None] * len(self.urls)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the records: other processes load the index files."""
        found = self._found.value or self._known
        known = [
            each._replace(places=each.places.ravel()[:0]) if each and each.stat.etag else None
            for each in found
        ]
        return self.__dict__ | {"_found": MadeOnce(), "_known": known}

    @cached_property
    def manifest(self) -> Manifest:
        found = zip(self.urls, self._scan_files(), strict=True)
        return Manifest(self._kind, [self._shard_of(url, each) for url, each in found])

    @abstractmethod
    def _scan(self, url: str, known: Found | None) -> Found:
        """Find the records of a file, which is pinned, unless another process found them."""

    @abstractmethod
    def _shard_of(self, url: str, found: Found) -> Shard:
        """The counts of a file."""

    def _scan_files(self) -> list[Found]:
        with explain_missing(self.urls):
            return self._found.get(self._scan_once)

    def _find_once(self, what: str, find: Callable[[], Any]) -> Any:
        """What is found in remote files, as JSON has it: one rank of a process group looks."""
        return found_once(what, self.urls, self._pool.options, find)

    def _scan_once(self) -> list[Found]:
        """Scan all files; of remote ones, one rank of a process group finds the records for all."""

        def scan() -> list[Found]:
            return list(in_threads(lambda item: self._scan(*item), pairs, _THREADS))

        pairs = list(zip(self.urls, self._known, strict=True))
        if not any(self._known) and not is_local(self.urls[0]) and has_other_ranks():
            what, options = f"scan {self._kind}", self._pool.options
            packed = made_once(what, self.urls, options, lambda: _pack(scan()))
            pairs = list(zip(self.urls, _unpack(packed), strict=True))
        return scan()

    def _found_in(self, number: int) -> Found:
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


def _pack(found: Sequence[Found]) -> bytes:
    files = [[each.stat, each.codec, each.places.shape] for each in found]
    # Distances are small numbers, which compress.
    steps = np.concatenate([np.diff(each.places.ravel(), prepend=0) for each in found])
    return encode_columns({"files": files}, {"steps": steps.view(np.uint64)})


def _unpack(packed: bytes) -> list[Found]:
    metadata, columns = decode_columns(packed)
    files, steps = json.loads(metadata["files"]), columns["steps"].view(np.int64)
    ends = np.cumsum([math.prod(shape) for _, _, shape in files])
    return [
        Found(FileStat(*stat), codec, np.cumsum(part).reshape(shape))
        for (stat, codec, shape), part in zip(files, np.split(steps, ends[:-1]), strict=True)
    ]
