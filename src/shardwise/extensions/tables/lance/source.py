"""The source of Lance tables: samples by id, from one version of a table.

Opens the table at the first use, once per process; a forked child of a process that used Lance
reads through a separate process. Lance is imported where a table is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Columns
from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.base.shown import shown
from shardwise.extensions.tables.arrow.columns import empty_columns, key_texts
from shardwise.extensions.tables.arrow.fill import fill_nulls, fills_of
from shardwise.extensions.tables.arrow.types import KEY, check_names, expand_names
from shardwise.extensions.tables.lance.forked import ForkedTable
from shardwise.extensions.tables.lance.row_blocks import BlockCache
from shardwise.extensions.tables.lance.schema import TableSchema
from shardwise.extensions.tables.lance.selection import RowSelection
from shardwise.sources.manifest import Manifest
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import StorageOptions
from shardwise.storage.url_patterns import refuse_json_lines

if TYPE_CHECKING:
    from shardwise.extensions.tables.lance.table import LanceTable


class LanceSource:
    """Rows of a version of a Lance table; `shardwise.lance` documents the arguments.

    The first use of the manifest looks up the version, and with a filter, `condition`, reads the
    columns that it names. From then on the version stays the same, also in pickled copies.
    """

    default_shuffle: Literal["window"] = "window"

    def __init__(
        self,
        uri: str,
        *,
        condition: str | None = None,
        version: int | str | None = None,
        fill: Any = None,
        storage: StorageOptions | Mapping[str, Any] | None = None,
        memory_bytes: int = 256 << 20,
    ) -> None:
        if memory_bytes < 0:
            raise ValueError(f"memory_bytes={memory_bytes}: use 0 or more")
        refuse_json_lines(uri)
        self.uri = uri
        self._condition = condition
        self._version = version
        self._fill = fill
        self._storage = StorageOptions.of(storage)
        self._memory_bytes = memory_bytes
        self._selection: RowSelection | None = None
        self._here: PerProcess[tuple[LanceTable | ForkedTable, BlockCache]] = PerProcess()

    def __repr__(self) -> str:
        version = self._version if self._selection is None else self._selection.description.version
        more = "" if version is None else f", version={version!r}"
        if self._condition is not None:
            more += f", filter={self._condition!r}"
        return f"LanceSource({shown(self.uri)!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        # It follows from the selection, and may be large.
        return {name: value for name, value in self.__dict__.items() if name != "_schema"}

    @property
    def manifest(self) -> Manifest:
        return self.selection.manifest

    @property
    def selection(self) -> RowSelection:
        """The selected rows."""
        if self._selection is None:
            self._open()
        assert self._selection is not None
        return self._selection

    @property
    def fields(self) -> tuple[str, ...]:
        return self._schema.fields

    @property
    def traits(self) -> SourceTraits:
        return self._schema.traits

    @cached_property
    def _schema(self) -> TableSchema:
        return TableSchema(self.selection.description)

    @cached_property
    def _fills(self) -> dict[str, Any]:
        schema = self._schema
        return fills_of(self._fill, {name: schema.types[name] for name in schema.names})

    def expand(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The fields of columns: a struct stands for all its parts."""
        return expand_names(columns, self._schema.names, url=self.uri)

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        selection, schema = self.selection, self._schema
        ids = np.asarray(ids, dtype=np.int64)
        names = schema.fields if fields is None else tuple(fields)
        check_names(names, schema.names, url=self.uri)
        selection.manifest.check(ids)
        keys = [] if schema.has_keys else selection.keys(ids)
        plain = [name for name in names if name not in schema.blobs]
        if schema.has_keys:
            plain.append(KEY)
        columns: dict[str, Any] = {}
        num_bytes = 0
        try:
            table, cache = self._open()
            if not len(ids):
                columns = empty_columns(schema.types, plain)
            elif plain:
                rows = cache.read(ids, schema.paths_of(plain))
                num_bytes = rows.num_bytes
                columns = rows.columns(ids, plain, self.uri)
            for name in schema.blobs.intersection(names):
                columns[name] = self._blobs(table, ids, name)
                num_bytes += len(columns[name].buffer)
        except DataError as error:
            if len(ids) == 1:
                [shard], _ = selection.manifest.locate(ids)
                error.url, error.index = selection.manifest.shards[shard].url, int(ids[0])
                error.key = keys[0] if keys else None
            raise
        for name, value in self._fills.items():
            if name in columns:
                columns[name] = fill_nulls(columns[name], value)
        if schema.has_keys:
            keys = key_texts(columns.pop(KEY), lambda _: self.uri)
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

    def _blobs(
        self, table: LanceTable | ForkedTable, ids: NDArray[np.int64], name: str
    ) -> BytesColumn:
        if not len(ids):
            return BytesColumn.of([])
        ascending, back = np.unique(ids, return_inverse=True)
        column = BytesColumn.of(table.blobs(self.selection.places(ascending), name))
        return BytesColumn(column.buffer, column.starts[back], column.lengths[back])

    # Opening, once per process.

    def _open(self) -> tuple[LanceTable | ForkedTable, BlockCache]:
        def open_here() -> tuple[LanceTable | ForkedTable, BlockCache]:
            table, selection = self._table(), self.selection

            def take(ids: NDArray[np.int64], paths: tuple[str, ...]) -> pa.RecordBatch:
                return table.take(selection.places(ids), paths)

            num_rows = selection.manifest.num_samples
            return table, BlockCache(take, num_rows=num_rows, max_bytes=self._memory_bytes)

        return self._here.get(open_here)

    def _table(self) -> LanceTable | ForkedTable:
        from shardwise.extensions.tables.lance.table import LanceTable, is_usable_here

        make: type[LanceTable | ForkedTable] = LanceTable if is_usable_here() else ForkedTable
        settings = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self._storage.settings().items()
        }
        if self._selection is None:
            table = make(self.uri, self._version, settings)
            description = table.description()
            condition = self._condition
            selected = None if condition is None else table.select(condition)
            self._selection = RowSelection(
                self.uri, description, condition=condition, selected=selected
            )
            return table
        first = self._selection.description
        try:
            table = make(self.uri, first.version, settings)
        except MissingShardError as error:
            raise StorageError(
                f"{self.uri}: the table that was planned is not there any more: {error.reason}"
            ) from error
        digest = table.description().digest
        if digest != first.digest:
            raise StorageError(
                f"{self.uri}: another table has taken the place of the one that was planned: its "
                f"version {first.version} has other files (digest {digest}, not "
                f"{first.digest}): make the dataset anew"
            )
        return table
