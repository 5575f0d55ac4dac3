"""The positions of a file's records, kept in a small file beside it or in the user's cache.

The index is a file of columns (`column_file`). It holds the length and the time or ETag of the file
that it was made from, and is valid for no other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardwise.base.arguments import path_text
from shardwise.storage import FileStat, is_local, local_path
from shardwise.storage.column_file import ColumnFileError, decode_columns, map_file, write_columns
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
