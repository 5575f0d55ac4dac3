"""One function a format: where the samples lie, in; a dataset of them, out. No logic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from shardwise.dataset import Dataset
from shardwise.sources.tar.source import TarSource
from shardwise.sources.wrap.source import WrapSource
from shardwise.storage import StorageOptions

if TYPE_CHECKING:
    from shardwise.storage.cache import CacheSettings

__all__ = ["files", "lance", "parquet", "tar", "wrap"]


def tar(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    index: str | PathLike[str] | None = None,
    fields: Sequence[str] | None = None,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
    accept_unfinished: bool = False,
) -> Dataset:
    """Samples in tar shards: the WebDataset format.

    Args:
        urls: a brace pattern (`"data/{000..123}.tar"`), a glob, a directory, or a list of these;
            local, or of a store (`"s3://bucket/data/{000..123}.tar"`).
        index: the directory of the index files; None for beside the shards. Indexes of remote
            shards are looked for beside these, too, and have a copy on this machine.
        fields: the fields to read, as `select` takes them; None for all.
        cache: a directory for what is read of remote shards, or the settings of such a cache;
            local ones need none and ignore it.
        storage: how remote shards are reached: options, or the store's own settings, such as
            `{"endpoint": "http://localhost:9000"}`. None for what the environment says.
        accept_unfinished: whether shards without an end (two blocks of zeros) are taken as they
            are. They may have been cut between two samples, so without it they are a DataError.

    Raises:
        MissingShardError: nothing is there under a url, or a directory or a glob finds an index
            whose shard is gone.
        StaleIndexError: a shard has changed since it was indexed; a copy has not.
        DataError: a shard is damaged, cut, or compressed.
        ValueError: a field is not there.

    Examples:
        ```python
        ds = sw.tar("train/{000..099}.tar", fields=("jpg", "cls")).decode(cls=int)
        ```
    """
    _check_names("fields", fields)
    dataset = Dataset(
        TarSource(
            urls,
            index=index,
            storage=_options(storage, cache),
            accept_unfinished=accept_unfinished,
        )
    )
    return dataset if fields is None else dataset.select(*fields)


def _check_names(argument: str, names: Any) -> None:
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r}: give a sequence of names, such as ({names!r},)")
    if names is not None and not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be a sequence of names, not a {type(names).__name__}")


def _options(
    storage: StorageOptions | Mapping[str, Any] | None,
    cache: str | PathLike[str] | CacheSettings | None,
) -> StorageOptions:
    """What the user says of storage, in one object."""
    if cache is None:
        return StorageOptions.of(storage)
    from shardwise.storage.cache import CacheSettings

    return StorageOptions.of(storage, cache=CacheSettings.of(cache))


def files(
    root_or_manifest: str | PathLike[str],
    *,
    root: str | PathLike[str] | None = None,
    path: str | None = None,
    suffixes: Sequence[str] | None = None,
    field: str | None = None,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Files as samples: a directory with one below it for each class, or a list of files.

    The bytes of a file are the field "image" (whatever kind of image it is), "audio", "video" or
    "text". A file of a class has "cls", the class's number in the order of the names, and "class",
    its name; the columns of a list are fields. The key is the path below the directory.

    Args:
        root_or_manifest: a local directory; or a list in CSV with a header, or in JSONL, local or
            remote.
        root: the directory that the paths in a list are relative to, and may not leave; None for
            the list's own.
        path: the column of a list that has the paths; None for "path", "file_name", "filename" or
            "file".
        suffixes: of the files that count: `(".jpg", ".png")`; None for all.
        field: the name of the field with the bytes; None for the kind of the files.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        DataError: files of several kinds, a list that can't be read, or a path that leaves `root`.

    Examples:
        ```python
        ds = sw.files("imagenet/train").select("image", "cls").decode(image=sw.image(size=224))
        ```
    """
    from shardwise.sources.files.source import FilesSource

    source = FilesSource(
        root_or_manifest,
        root=root,
        path=path,
        suffixes=suffixes,
        field=field,
        storage=_options(storage, cache),
    )
    return Dataset(source)


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
            by `save_to_disk`), or a list of these; Parquet files may be remote.
        columns: the columns to read, as `select` takes them, where a struct's name stands for all
            its fields; None for all. Files may differ in all other columns.
        schema: a dict of name -> type (pyarrow's, or its name: `{"x": "float64"}`) for columns
            that the files have in several types or not at all: they are cast, or null. A pyarrow
            schema is the same for all columns: there are no others then.
        fill: what stands for a null: `{"x": 0}`, or one value for all columns of its kind.
        memory_bytes: decoded row groups that a process keeps; at least four are kept.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: nothing is there under a url.
        DataError: a file is no table, or the files have different columns; a column is not there.
        ValueError: a value of `fill` does not fit its column.

    Examples:
        ```python
        ds = sw.parquet("train/*.parquet", columns=("image", "label")).decode(image=sw.image())
        ```
    """
    from shardwise.sources.tables.parquet.source import ParquetSource

    _check_names("columns", columns)
    source = ParquetSource(
        urls,
        columns=columns,
        schema=schema,
        fill=fill,
        memory_bytes=memory_bytes,
        storage=_options(storage, cache),
    )
    dataset = Dataset(source)
    return dataset if columns is None else dataset.select(*source.expand(columns))


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
            and kept as 4 bytes a row; it has to give the same rows on every rank.
        version: a number or a tag; None for the latest.
        fill: as for `parquet`.
        memory_bytes: rows that will be asked for soon, kept in a process.
        storage: how an object store is reached: options, or its own settings, which Lance gets.

    Raises:
        MissingShardError: there is no table, or no such version; it names those there are.
        DataError: a column is not there, or the filter can't be understood.

    Examples:
        ```python
        ds = sw.lance("train.lance", columns=("image", "label")).decode(image=sw.image())
        ```
    """
    from shardwise.sources.tables.lance.source import LanceSource

    _check_names("columns", columns)
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


def wrap(dataset: Any) -> Dataset:
    """Samples of any map-style dataset: whatever has `__len__` and `__getitem__`.

    Items that are dicts keep their names, tuples and lists become the fields "0", "1", ...,
    anything else the field "value". The key is the item's "__key__" or its index. Decoders are
    applied to the values as they are; before a `map`, and decoders, arrays and lists are copied, so
    that writing into them leaves the dataset as it is. The fingerprint is the own one of a Hugging
    Face dataset, else made of type, length, the indices of a `Subset`, and the first, middle and
    last sample. Threads may ask for items side by side: the dataset must allow it.

    A Hugging Face dataset (`datasets.Dataset`) without a format, a transform, structs and columns
    that it decodes is read by the columns of its Arrow table: numbers and lists of numbers are
    arrays then, and rows are taken many at a time. Any other one is read row by row.

    Raises:
        TypeError: it has no length or can't be indexed, or is a table or a dict of datasets.

    Examples:
        >>> import shardwise as sw
        >>> sw.wrap([("a", 1), ("b", 2)])[0]
        {'__key__': '0', '0': 'a', '1': 1}
    """
    # By name: neither package is imported for it, and no other class is called so.
    kind = type(dataset)
    if (kind.__module__, kind.__name__) == ("datasets.arrow_dataset", "Dataset"):
        from shardwise.sources.tables.huggingface import HuggingFaceSource, is_columnar, undecoded

        if is_columnar(dataset):
            return Dataset(HuggingFaceSource(dataset))
        return Dataset(WrapSource(dataset, undecoded=undecoded))
    return Dataset(WrapSource(dataset))
