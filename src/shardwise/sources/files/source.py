"""The source of files: one sample per file, read whole.

Lists at the first use, once per process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from glob import has_magic
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_flag, no_such_field, path_text
from shardwise.base.columns import Column, Columns, PayloadColumn
from shardwise.base.errors import DataError, StorageError
from shardwise.base.shown import base_name, shown
from shardwise.sources.files.folder import Listing, list_folder
from shardwise.sources.files.list_file import SUFFIXES, read_list
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import MadeOnce
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import (
    FilePool,
    FileStat,
    PoolRanges,
    StorageOptions,
    Upcoming,
    UrlRanges,
    is_local,
    local_path,
    open_file,
    require_not_written_since,
)
from shardwise.storage.byte_ranges import WHOLE
from shardwise.storage.missing import near_names
from shardwise.storage.protocol import File


class FilesSource:
    """Files as samples, by id; the first use lists the directory, or reads the list."""

    default_shuffle: Literal["full"] = "full"

    def __init__(
        self,
        root_or_manifest: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        path: str | None = None,
        suffixes: Collection[str] | None = None,
        field: str | None = None,
        pairs: bool = False,
        storage: StorageOptions | None = None,
    ) -> None:
        text = path_text("root_or_manifest", root_or_manifest)
        self.url = local_path(text) if is_local(text) else text
        if isinstance(suffixes, str):
            raise TypeError(f"suffixes={suffixes!r}: give a sequence, such as ({suffixes!r},)")
        if suffixes is not None and not _are_texts(suffixes):
            raise TypeError("suffixes must be a sequence of str, such as ('.jpg', '.png')")
        for name, value in (("path", path), ("field", field)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not a {type(value).__name__}")
        self._is_list = base_name(self.url).endswith(SUFFIXES)
        if not self._is_list and (root is not None or path is not None):
            raise ValueError(
                f"root and path are for lists of files, and {shown(self.url)!r} is none"
            )
        check_flag("pairs", pairs)
        if self._is_list and pairs:
            raise ValueError(f"pairs=True is for directories, and {shown(self.url)!r} is a list")
        self._pairs = pairs
        self._root = None if root is None else path_text("root", root)
        self._path = path
        self._suffixes = None if suffixes is None else tuple(suffixes)
        self._field = field
        self.storage = storage
        self._listed: MadeOnce[tuple[Listing, Manifest]] = MadeOnce()

    def __repr__(self) -> str:
        return f"FilesSource({shown(self.url)!r})"

    @property
    def listing(self) -> Listing:
        return self._open()[0]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.listing.classes

    @property
    def manifest(self) -> Manifest:
        """A shard for each class, or for each run of files; the names are in the fingerprint."""
        return self._open()[1]

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.listing.field, *self.listing.beside, *self.listing.columns)

    @property
    def traits(self) -> SourceTraits:
        columns = self.listing.columns
        layouts = {
            name: (column.shape[1:], column.dtype)
            for name, column in columns.items()
            if isinstance(column, np.ndarray) and column.dtype.kind != "O"
        }
        return SourceTraits(value_fields=frozenset(columns), layouts=layouts)

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        listing = self.listing
        ids = np.asarray(ids, dtype=np.int64)
        known = self.fields
        names = known if fields is None else fields
        columns: dict[str, Column] = {}
        num_bytes = 0
        keys = [listing.names[i] for i in ids.tolist()]
        for name in names:
            if name not in known:
                raise ValueError(no_such_field(name, known))
            if name == listing.field:
                data = PayloadColumn(self._read_files(ids))
                columns[name], num_bytes = data, num_bytes + int(data.lengths.sum())
                continue
            if name in listing.beside:
                files = [self._read_beside(i, name) for i in ids.tolist()]
                columns[name] = PayloadColumn(files)
                num_bytes += sum(map(len, filter(None, files)))
                continue
            column = listing.columns[name]
            if isinstance(column, np.ndarray) and column.dtype.kind != "O":
                columns[name] = column[ids]
            else:
                columns[name] = [column[i] for i in ids.tolist()]
        return Columns(ids, keys, columns, num_bytes)

    def file_of(self, sample: int) -> tuple[str, str, FileStat | None]:
        listing = self.listing
        key = listing.names[sample]
        stat = None if listing.stats is None else FileStat(*listing.stats[sample].tolist())
        return key, f"{listing.base.rstrip('/')}/{key}", stat

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_: int
    ) -> Iterable[PoolRanges] | None:
        if is_local(self.listing.base):
            return None
        is_read = fields is None or self.listing.field in fields
        urls = dict.fromkeys(self.file_of(i)[1] for i in (ids.tolist() if is_read else ()))
        # A pool that knows no version, whose reader caches what it fetches; and noted versions.
        pool = FilePool(options=self.storage and replace(self.storage, cache=None))
        noted = FilePool(options=self.storage)
        new: list[UrlRanges] = []
        again: list[UrlRanges] = []
        for url in urls:
            file: Any = open_file(url, options=self.storage)
            if not getattr(file, "is_noted", False):
                new.append((url, [0], [WHOLE.stop], 0))
            elif (stat := file.read_note(self.listing.opened_ns)) is not None:
                noted.pin(url, stat)
                again.append((url, [0], [stat.num_bytes], 0))
        return [(pool, new), (noted, again)]

    def _read_files(self, ids: NDArray[np.int64]) -> list[bytes | None]:
        with closing(Upcoming()) as upcoming:
            upcoming.announce(0, self.ranges(ids) or ())
            return list(map(self._read_file, ids.tolist()))

    def _read_file(self, index: int) -> bytes:
        with self.opened_file(index) as (file, stat):
            return file.read(0, stat.num_bytes)

    def _read_beside(self, index: int, field: str) -> bytes | None:
        names, stats = self.listing.beside[field]
        if not names[index]:
            return None
        url = f"{self.listing.base.rstrip('/')}/{names[index]}"
        listed = FileStat(*stats[index].tolist())
        with self._open_file(index, url, listed) as (file, stat):
            return file.read(0, stat.num_bytes)

    def opened_file(self, index: int) -> AbstractContextManager[tuple[File, FileStat]]:
        """A sample's file, held to the version that was listed, and its stat; closed at the end."""
        return self._open_file(index, *self.file_of(index)[1:])

    @contextmanager
    def _open_file(
        self, index: int, url: str, stat: FileStat | None
    ) -> Iterator[tuple[File, FileStat]]:
        try:
            file = open_file(url, options=self.storage)
            try:
                if stat is None:
                    stat = file.stat(self.listing.opened_ns)
                    require_not_written_since(self.listing.opened_ns, stat, url)
                file.pin(stat)
                yield file, stat
            finally:
                file.close()
        except DataError as error:
            error.url, error.key, error.index = url, self.listing.names[index], index
            raise

    def _open(self) -> tuple[Listing, Manifest]:
        def make() -> tuple[Listing, Manifest]:
            listing = self._list()
            return listing, _manifest(listing)

        return self._listed.get(make)

    def _list(self) -> Listing:
        if self._is_list:
            return read_list(
                self.url,
                root=self._root,
                path=self._path,
                suffixes=self._suffixes,
                field=self._field,
                storage=self.storage,
            )
        if not is_local(self.url):
            raise StorageError(
                f"{self.url!r}: remote directories are not listed; give a list of the files "
                f"({', '.join(SUFFIXES)}), or pack them into tar shards"
            )
        try:
            return list_folder(
                self.url, suffixes=self._suffixes, field=self._field, pairs=self._pairs
            )
        except NotADirectoryError:
            raise DataError(
                f"it is neither a directory nor a list of files ({', '.join(SUFFIXES)})",
                url=self.url,
            ) from None
        except DataError:
            raise
        except FileNotFoundError:
            hint = (
                ", and patterns are not expanded: name the directory, and its files by "
                "suffixes=('.jpg',)"
                if has_magic(self.url)
                else near_names(self.url)
            )
            raise StorageError(f"no directory {self.url!r}{hint}") from None
        except OSError as error:
            raise StorageError(
                f"can't list the directory {self.url!r}: {error.strerror or error}"
            ) from None


def _manifest(listing: Listing) -> Manifest:
    shards, start = [], 0
    for name, count in listing.shards:
        num_bytes = 0
        if listing.stats is not None:
            num_bytes = int(listing.stats[start : start + count, 0].sum())
        shards.append(Shard(f"{listing.base.rstrip('/')}/{name}", count, num_bytes))
        start += count
    # Other files are other data, however alike their counts.
    return Manifest(f"files {listing.digest()}", shards)


def _are_texts(values: Any) -> bool:
    return isinstance(values, Collection) and all(isinstance(value, str) for value in values)
