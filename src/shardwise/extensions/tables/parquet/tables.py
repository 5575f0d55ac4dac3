"""The files of one table, opened: counts, fields and versions, without any rows.

Keeps I6 and I7: files that do not fit together are an error when the table is opened, not in the
middle of an epoch; and nothing here grows with the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.base.errors import DataError, StorageError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.parallel import in_threads
from shardwise.base.shown import base_name
from shardwise.extensions.tables.arrow.fill import fills_of
from shardwise.extensions.tables.arrow.types import KEY, field_types, number_dtype, traits_of
from shardwise.extensions.tables.parquet.fields import ColumnOptions, TableFields, fields_of
from shardwise.extensions.tables.parquet.parquet_file import FileInfo, ParquetFile, check_version
from shardwise.extensions.tables.parquet.urls import Partition, partitions_of
from shardwise.extensions.tables.row_group_cache import window_within
from shardwise.plan import WindowShape
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import File, FilePool, FileStat, local_path
from shardwise.storage.found_once import found_once

_MAGIC = b"ARROW1"


class ArrowFile:
    """An Arrow file as Hugging Face datasets write it, mapped; `stat` is as for `open_table`.

    Both of Arrow's layouts, the stream and the file. A record batch is a row group, whose columns
    are views of the mapped file: taking rows reads the pages that they lie on.
    """

    def __init__(self, file: File, stat: FileStat | None = None, footer: bytes = b"") -> None:
        del footer  # Arrow files have none
        if file.is_remote:
            raise StorageError(
                f"{file.url!r} is an Arrow file, which is mapped and so must lie on this machine: "
                "copy it, or write Parquet files, which are read where they lie"
            )
        self._path = local_path(file.url)
        self._file = file
        self._stat = file.stat() if stat is None else stat
        self._batches: list[pa.RecordBatch] | None = None
        self._schema: pa.Schema | None = None

    def info(self) -> FileInfo:
        """The facts in the batches' headers."""
        batches = self._map_batches()
        return FileInfo(
            self._file.url,
            self._stat,
            self._schema,
            np.array([batch.num_rows for batch in batches], dtype=np.int64),
            np.array([batch.nbytes for batch in batches], dtype=np.int64),
        )

    def read(self, group: int, names: Sequence[str]) -> tuple[pa.RecordBatch, int]:  # noqa: ARG002
        """A record batch, with all its columns: nothing is read before it is looked at."""
        self.check()
        return self._map_batches()[group], 0

    def check(self) -> None:
        """Check the file's version, before and after views of the map are read."""
        check_version(self._file, self._stat)

    def _map_batches(self) -> list[pa.RecordBatch]:
        if self._batches is None:
            with as_data_error("it is not an Arrow file, or damaged", url=self._file.url):
                with pa.memory_map(self._path) as source:
                    is_file = source.read(len(_MAGIC)) == _MAGIC
                    source.seek(0)
                    if is_file:
                        reader = pa.ipc.open_file(source)
                        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
                    else:
                        reader = pa.ipc.open_stream(source)
                        batches = list(reader)
                self._schema = reader.schema
                field_types(self._schema)  # decodes the names, which may not be UTF-8
                for batch in batches:
                    batch.validate()  # the sizes of buffers, before their bytes are counted
            self._batches = batches
        return self._batches


# An open file of a table; any thread may read from it.
TableFile: TypeAlias = ParquetFile | ArrowFile
# Reading a footer is mostly waiting for storage.
_OPEN_THREADS = 16
# Uncompressed bytes of the row groups that a window shuffle has in use at a time. A constant: the
# order must be the same on every machine.
_WINDOW_BYTES = 512 << 20
_MAX_LANES = 1024
# Footers of remote files travel with a pickled source; of more than 16 MiB in all, each process
# reads those of the files that it decodes.
_FOOTER_BYTES = 16 << 20


@dataclass(frozen=True)
class Tables:
    """The files of an open table; pickles small.

    A shard is a row group: `file_of`, `group_of` and `first_rows` say where each one lies, int64.
    If the files are `mapped`, any row is as near as another. `footers` has the bytes of each, which
    may be empty.
    """

    manifest: Manifest
    urls: tuple[str, ...]
    stats: tuple[FileStat, ...]
    footers: tuple[bytes, ...]
    file_of: NDArray[np.int64]
    group_of: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    columns: TableFields
    fills: dict[str, Any]
    partitions: tuple[Partition, ...]
    traits: SourceTraits
    mapped: bool

    @functools.cached_property
    def stems(self) -> list[str]:
        """The files' base names without their extensions."""
        names = [base_name(url) for url in self.urls]
        return [name.rpartition(".")[0] or name for name in names]

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.columns.stored, *(partition.name for partition in self.partitions))


def open_table(
    url: str, pool: FilePool, stat: FileStat | None = None, footer: bytes = b""
) -> TableFile:
    """Open the present, or the given, version of an Arrow (".arrow") or Parquet file.

    `footer` has the bytes of its footer, or is empty: then they are read when they are needed.
    """
    kind = ArrowFile if url.endswith(".arrow") else ParquetFile
    return kind(pool.get(url), stat, footer)


def open_tables(urls: Sequence[str], pool: FilePool, options: ColumnOptions) -> Tables:
    """Read the footers of all files, which must have the columns of one table."""

    def read() -> list[Any]:
        infos, room = list[FileInfo](), _FOOTER_BYTES
        for info in in_threads(lambda url: open_table(url, pool).info(), urls, _OPEN_THREADS):
            room -= len(info.footer)
            infos.append(info if room >= 0 else replace(info, footer=b""))
        return [
            [
                i.stat, i.schema.serialize().hex().decode(), i.rows.tolist(), i.sizes.tolist(),
                i.footer.hex() if room >= 0 else "",
            ]
            for i in infos
        ]  # fmt: skip

    # One rank of a process group reads those of remote files for all.
    found = found_once("tables", urls, pool.options, read)
    infos = [
        FileInfo(
            url, FileStat(*stat), pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema))),
            np.array(rows, np.int64), np.array(sizes, np.int64), bytes.fromhex(footer),
        )
        for url, (stat, schema, rows, sizes, footer) in zip(urls, found, strict=True)
    ]  # fmt: skip
    dirs = {p.name: p for p in partitions_of(urls)}
    fields = fields_of(infos, {name: pa.array(p.values).type for name, p in dirs.items()}, options)
    schema = pa.schema(list(fields.types.items()))
    shards = [
        Shard(info.url, rows, size)
        for info in infos
        for rows, size in zip(info.rows.tolist(), info.sizes.tolist(), strict=True)
    ]
    manifest = Manifest("parquet", shards)
    mapped = {url.endswith(".arrow") for url in urls}
    if len(mapped) > 1:
        raise DataError("Parquet files and Arrow files are not one table", url=urls[0])
    counts = [len(info.rows) for info in infos]
    return Tables(
        manifest=manifest,
        urls=tuple(urls),
        stats=tuple(info.stat for info in infos),
        footers=tuple(info.footer for info in infos),
        file_of=np.repeat(np.arange(len(infos)), counts),
        group_of=np.concatenate([np.arange(count) for count in counts]),
        first_rows=np.concatenate([np.cumsum(info.rows) - info.rows for info in infos]),
        columns=fields,
        fills=fills_of(options.fill, {k: v for k, v in fields.types.items() if k != KEY}),
        partitions=tuple(_cast(dirs[name], fields.types[name]) for name in fields.partitions),
        traits=replace(
            traits_of(schema, parts=fields.parts, window_shape=_window_shape(manifest)),
            reads_pieces=True,
        ),
        mapped=mapped == {True},
    )


def _cast(partition: Partition, kind: pa.DataType) -> Partition:
    try:
        values = tuple(pa.array(partition.values).cast(kind).to_pylist())
    except pa.ArrowException as error:
        raise DataError(
            f"the directories' values of {partition.name!r} can't be cast to {kind}: {error}",
            field=partition.name,
        ) from error
    return Partition(partition.name, values, number_dtype(kind))


def _window_shape(manifest: Manifest) -> WindowShape:
    """Windows as long as a row group: one mostly lies in two, so each lane has two in use."""
    shape = window_within(_WINDOW_BYTES, manifest, max_lanes=_MAX_LANES)
    mean_rows = manifest.num_samples // max(1, int((manifest.sizes > 0).sum()))
    return WindowShape(shape.lanes, max(shape.window, mean_rows))
