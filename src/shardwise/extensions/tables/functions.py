"""`sw.parquet` and `sw.lance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from shardwise.base.arguments import suggest_names
from shardwise.dataset import Dataset
from shardwise.dataset.formats import check_names
from shardwise.storage import StorageOptions
from shardwise.storage.options import CacheSettings


@suggest_names
def parquet(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    schema: Any = None,
    fill: Any = None,
    memory_bytes: int = 1 << 30,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of a table in Parquet files, or in the Arrow files of a Hugging Face dataset.

    Numbers and fixed-size lists come as arrays, strings as str, binary columns as bytes that
    decoders read; fields of structs are called "a.b", and a struct of `bytes` and `path`, as the
    hub has images and audio, is one field; directories `name=value` are columns. A null is a field
    that the sample lacks; in a batch, columns of numbers have none: see `fill`. docs/tables.md has
    all types.

    Args:
        urls: files, a brace pattern, a glob, a directory (which is searched through, or was written
            by `save_to_disk`), or a list of them; Parquet files may be remote.
        columns: the columns to read, as `select` takes them, where a struct's name stands for all
            its fields; None for all. Files may differ in all other columns.
        schema: a dict of name -> type (pyarrow's, or its name: `{"x": "float64"}`) for columns
            that the files have in several types or not at all: they are cast, or null. A pyarrow
            schema does the same for all columns: the table has no others then.
        fill: the value for nulls: `{"x": 0}`, or one value for all columns of its kind.
        memory_bytes: of the decoded row groups that a process keeps, which are four at least.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: nothing is there under a url.
        DataError: a file is not a table, the files have different columns, or a column is missing.
        ValueError: a value of `fill` does not fit its column.

    Examples:
        ```python
        ds = sw.parquet("train/*.parquet", columns=("image", "label")).decode(image=sw.image())
        ```
    """
    from shardwise.extensions.tables.parquet.source import ParquetSource

    check_names("columns", columns)
    source = ParquetSource(
        urls,
        columns=columns,
        schema=schema,
        fill=fill,
        memory_bytes=memory_bytes,
        storage=StorageOptions.of(storage, cache=cache),
    )
    dataset = Dataset(source)
    return dataset if columns is None else dataset.select(*source.expand(columns))


@suggest_names
def lance(
    uri: Any,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - what Lance calls it
    version: int | str | None = None,
    fill: Any = None,
    memory_bytes: int = 256 << 20,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Rows of one version of a Lance table, or of a LanceDB one.

    Columns come as those of `parquet` do, blobs as bytes. The version is pinned when the dataset
    is first used: rows that are added or deleted later change nothing, and a state resumes on the
    same version only. Several ranks that start while the table is written to may find different
    versions: name one. docs/tables.md has more.

    Args:
        uri: a directory or a URL of an object store, or an open table of Lance or LanceDB, whose
            version is taken. Its storage options are not: give `storage`.
        columns: the columns to read, as `select` takes them, where a struct's name stands for all
            its fields; None for all. "_rowid" and "_rowaddr" are Lance's own numbers of a row.
        filter: keep the rows for which this holds, in SQL as Lance takes it. It is worked out once
            and kept as 4 bytes per row; it has to give the same rows on every rank.
        version: a number or a tag; None for the latest.
        fill: as for `parquet`.
        memory_bytes: of the blocks of rows that a process keeps for the next batches.
        storage: for an object store: options, or its own settings, which Lance gets.

    Raises:
        MissingShardError: the table or the version does not exist; it names existing versions.
        DataError: a column is not there, or the filter can't be understood.

    Examples:
        ```python
        ds = sw.lance("train.lance", columns=("image", "label")).decode(image=sw.image())
        ```
    """
    from shardwise.extensions.tables.lance.source import LanceSource

    check_names("columns", columns)
    if not isinstance(uri, str | PathLike):
        # An open table knows where it lies and which version it shows.
        if not (hasattr(uri, "uri") and hasattr(uri, "version")):
            raise TypeError(f"uri={uri!r}: give a path, a URL or an open table")
        version = uri.version if version is None else version
        uri = uri.uri
    source = LanceSource(
        str(uri),
        condition=filter,
        version=version,
        fill=fill,
        memory_bytes=memory_bytes,
        storage=storage,
    )
    dataset = Dataset(source)
    return dataset if columns is None else dataset.select(*source.expand(columns))
