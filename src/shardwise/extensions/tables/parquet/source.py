"""The source of tables: rows by id, from a cache of decoded row groups.

Opens the files at the first use, once per process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import shown
from shardwise.extensions.tables.arrow.columns import empty_columns, gather, key_texts, leaf
from shardwise.extensions.tables.arrow.convert import convert
from shardwise.extensions.tables.arrow.fill import fill_nulls
from shardwise.extensions.tables.arrow.types import KEY, check_names, expand_names
from shardwise.extensions.tables.arrow.views import ArrowColumn
from shardwise.extensions.tables.parquet.fields import ColumnOptions, cast_column
from shardwise.extensions.tables.parquet.parquet_file import ParquetFile
from shardwise.extensions.tables.parquet.tables import (
    ArrowFile,
    TableFile,
    Tables,
    open_table,
    open_tables,
)
from shardwise.extensions.tables.parquet.urls import find_tables
from shardwise.extensions.tables.row_group_cache import RowGroupCache
from shardwise.sources.manifest import Manifest
from shardwise.sources.per_process import MadeOnce, PerProcess
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import FilePool, PoolRanges, StorageOptions, UrlRanges, is_local
from shardwise.storage.missing import explain_missing

# Bytes a row and column beside Arrow's own: an offset and a length, int64 each.
_ROW_BYTES = 16
# Open files with their footers, a process.
_MAX_FILES = 256


class ParquetSource:
    """Rows of tables in Parquet or Arrow files, by id; see `shardwise.parquet` for the arguments.

    A shard is a row group, which is decoded whole, in the requested columns, and stays in memory
    with others up to `memory_bytes` per process. The window shuffle has as many lanes as keep the
    row groups in use small, and windows of a row group's length: each is decoded once per epoch.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        fill: Any = None,
        memory_bytes: int = 1 << 30,
        storage: StorageOptions | None = None,
    ) -> None:
        if memory_bytes < 0:
            raise ValueError(f"memory_bytes={memory_bytes}: use 0 or more")
        self._options = ColumnOptions.of(columns, schema, fill)
        self.urls = find_tables(urls, options=storage)
        self._pool = FilePool(options=storage)
        self._tables: MadeOnce[Tables] = MadeOnce()
        self._groups: RowGroupCache[dict[str, ArrowColumn]] = RowGroupCache(memory_bytes)
        self._files: PerProcess[dict[int, TableFile]] = PerProcess()

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} files" if len(self.urls) > 1 else ""
        return f"ParquetSource({shown(self.urls[0])!r}{more})"

    @property
    def tables(self) -> Tables:
        """The content of the footers; the first use reads them."""
        with explain_missing(self.urls):
            return self._tables.get(lambda: open_tables(self.urls, self._pool, self._options))

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """Full for mapped files; else by windows, since a row group is decoded whole."""
        return "full" if self.tables.mapped else "window"

    @property
    def manifest(self) -> Manifest:
        return self.tables.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        return self.tables.fields

    @property
    def traits(self) -> SourceTraits:
        return self.tables.traits

    def expand(self, names: Sequence[str]) -> tuple[str, ...]:
        """Fields by name; a struct's name stands for all its fields."""
        return expand_names(names, (*self.fields, *self.traits.parts), url=self.urls[0])

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        tables = self.tables
        known = tables.columns
        ids = np.asarray(ids, dtype=np.int64)
        names = tables.fields if fields is None else tuple(fields)
        if fields is not None:
            check_names(names, (*tables.fields, *known.parts), url=self.urls[0])
        tables.manifest.check(ids)
        groups, rows = tables.manifest.locate(ids)
        stored = self._list_stored_fields(fields)
        columns: dict[str, Any] = {}
        num_bytes = 0
        if stored:
            columns, num_bytes = self._take(ids, groups, rows, stored)
        for partition in tables.partitions:
            if partition.name in names:
                columns[partition.name] = partition.take(tables.file_of[groups])
        for name, value in tables.fills.items():
            if name in columns:
                columns[name] = fill_nulls(columns[name], value)
        if known.has_keys:
            urls, files = tables.urls, tables.file_of[groups]
            keys = key_texts(columns.pop(KEY), lambda row: urls[int(files[row])])
        else:
            keys = self._keys(groups, rows)
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_epoch: int
    ) -> Iterable[PoolRanges] | None:
        if all(map(is_local, self.tables.urls)):
            return None
        tables, names = self.tables, self._list_stored_fields(fields)
        groups, _ = tables.manifest.locate(ids)
        reads: list[UrlRanges] = []
        for group in np.unique(groups).tolist() if names else ():
            number = int(tables.file_of[group])
            # Ranges make no request: a footer that is not here is read with the row group.
            is_known = tables.footers[number] or number in self._files.get(dict)
            file = self._file(number) if is_known else None
            if (group, names) not in self._groups and isinstance(file, ParquetFile):
                spans = file.spans(int(tables.group_of[group]), names)
                ends = list(accumulate(end - begin for begin, end in spans))
                reads.append((file.url, [begin for begin, _ in spans], ends, 0))
        return [(self._pool, reads)]

    # Inner parts.

    def _list_stored_fields(self, fields: tuple[str, ...] | None) -> tuple[str, ...]:
        known = self.tables.columns
        names = frozenset(self.tables.fields if fields is None else fields)
        stored = tuple(name for name in (*known.stored, *known.parts) if name in names)
        return (*stored, KEY) if known.has_keys else stored

    def _take(
        self,
        ids: NDArray[np.int64],
        groups: NDArray[np.int64],
        rows: NDArray[np.int64],
        names: tuple[str, ...],
    ) -> tuple[dict[str, Any], int]:
        """Rows of the stored fields, and the bytes that were read for them."""
        if not len(ids):
            return empty_columns(self.tables.columns.types, names), 0
        num_read = [0]

        def locate(row: int) -> tuple[str, str]:
            one = slice(row, row + 1)
            url = self.manifest.shards[int(groups[row])].url
            return url, self._keys(groups[one], rows[one])[0]

        def columns_of(group: int) -> dict[str, ArrowColumn]:
            return self._group(group, names, num_read)

        # A map of a file that is cut ends the process, one that is written to shows other bytes.
        self._check_maps(groups)
        columns = gather(names, groups, rows, columns_of, ids=ids, locate=locate)
        self._check_maps(groups)
        return columns, num_read[0]

    def _check_maps(self, groups: NDArray[np.int64]) -> None:
        if self.tables.mapped:
            for number in np.unique(self.tables.file_of[groups]).tolist():
                file = self._file(number)
                assert isinstance(file, ArrowFile)
                file.check()

    def _group(
        self, group: int, names: tuple[str, ...], num_read: list[int]
    ) -> dict[str, ArrowColumn]:
        """A row group's columns, decoded now or before; counts the bytes read."""

        def decode() -> tuple[dict[str, ArrowColumn], int]:
            tables = self.tables
            file = self._file(int(tables.file_of[group]))
            table, num_bytes = file.read(int(tables.group_of[group]), names)
            num_read[0] += num_bytes
            num_rows, url = int(tables.manifest.sizes[group]), tables.manifest.shards[group].url
            columns = {}
            for name in names:
                with as_data_error(f"the column {name!r} can't be read", url=url):
                    stored = leaf(table, name)
                    column = cast_column(stored, tables.columns.casts.get(name), num_rows, name)
                    columns[name] = convert(column)
            # Mapped data takes no memory of this process.
            size = 0 if tables.mapped and not tables.columns.casts else table.nbytes
            return columns, size + _ROW_BYTES * num_rows * len(names)

        return self._groups.get((group, names), decode)

    def _file(self, number: int) -> TableFile:
        files = self._files.get(dict)
        file = files.get(number)
        if file is None:
            tables = self.tables
            # Two threads may both open it: one of them stays.
            url, stat, footer = tables.urls[number], tables.stats[number], tables.footers[number]
            file = open_table(url, self._pool, stat, footer)
            while len(files) >= _MAX_FILES:
                files.pop(next(iter(files)), None)
            files[number] = file
        return file

    def _keys(self, groups: NDArray[np.int64], rows: NDArray[np.int64]) -> list[str]:
        tables = self.tables
        in_file = (tables.first_rows[groups] + rows).tolist()
        if len(groups) and (groups == groups[0]).all():
            stem = tables.stems[int(tables.file_of[groups[0]])]
            return [f"{stem}:{row}" for row in in_file]
        stems, files = tables.stems, tables.file_of[groups].tolist()
        return [f"{stems[file]}:{row}" for file, row in zip(files, in_file, strict=True)]
