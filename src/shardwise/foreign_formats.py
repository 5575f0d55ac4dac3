"""One function for each format that other libraries write; see `shardwise.formats`. No logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from shardwise.arguments import suggest_names
from shardwise.dataset import Dataset
from shardwise.formats import check_names
from shardwise.storage import StorageOptions

if TYPE_CHECKING:
    from shardwise.storage.cache import CacheSettings


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
            by `save_to_disk`), or a list of these; Parquet files may be remote.
        columns: the columns to read, as `select` takes them, where a struct's name stands for all
            its fields; None for all. Files may differ in all other columns.
        schema: a dict of name -> type (pyarrow's, or its name: `{"x": "float64"}`) for columns
            that the files have in several types or not at all: they are cast, or null. A pyarrow
            schema is the same for all columns: there are no others then.
        fill: what stands for a null: `{"x": 0}`, or one value for all columns of its kind.
        memory_bytes: of the decoded row groups that a process keeps, which are four at least.
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
            and kept as 4 bytes a row; it has to give the same rows on every rank.
        version: a number or a tag; None for the latest.
        fill: as for `parquet`.
        memory_bytes: of the blocks of rows that a process keeps for the next batches.
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


@suggest_names
def mds(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    memory_bytes: int = 1 << 30,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Samples in MDS shards, as MosaicML Streaming's `MDSWriter` wrote them.

    Columns of numbers and of arrays of one shape are arrays, texts are str, JSON is what it says;
    "bytes", "jpeg" and "png" are bytes that decoders read, and so is "pkl": nothing is unpickled.
    The key is the shard's name and the number in it. Compressed shards (zstd, gzip, bz2, brotli,
    snappy) need pyarrow; each is decompressed whole.

    Args:
        urls: a directory with an `index.json`, local or remote, or a list of these (streams), whose
            samples stand behind one another; all must have the same columns.
        memory_bytes: of the decompressed shards that a process keeps, which are four at least.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: there is no index, or no shard that it names.
        DataError: an index or a shard is damaged, cut, or of another version.

    Examples:
        ```python
        ds = sw.mds("s3://bucket/imagenet/train").decode(x=sw.image(size=224))
        ```
    """
    from shardwise.sources.mds.source import MdsSource

    source = MdsSource(
        urls, storage=StorageOptions.of(storage, cache=cache), memory_bytes=memory_bytes
    )
    return Dataset(source)


@suggest_names
def litdata(
    url: str | PathLike[str],
    *,
    memory_bytes: int = 1 << 30,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Samples in LitData's chunks, as its `optimize` wrote them.

    A dict's entries are the fields, of a list or tuple "0", "1", ..., and "value" of all else.
    Numbers, texts, arrays and tensors (as numpy arrays) are values, and so is what is nested;
    encoded pictures and media are bytes that decoders read, and so are pickles: nothing is
    unpickled. Compressed chunks (zstd) need pyarrow.

    Args:
        url: a directory with an `index.json`, local or remote.
        memory_bytes: of the decompressed chunks that a process keeps, which are four at least.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: there is no index, or no chunk that it names.
        DataError: an index or a chunk is damaged, cut, encrypted, or made of serialisers that
            LitData has not itself.

    Examples:
        ```python
        ds = sw.litdata("s3://bucket/optimized").decode(image=sw.image(size=224))
        ```
    """
    from shardwise.sources.litdata.source import LitDataSource

    source = LitDataSource(
        url, storage=StorageOptions.of(storage, cache=cache), memory_bytes=memory_bytes
    )
    return Dataset(source)


@suggest_names
def tfrecord(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    features: Mapping[str, str] | Sequence[str] | None = None,
    index: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Records of TFRecord files, and the features of the `tf.train.Example` in them.

    Each file is scanned once for its records; what is found is kept beside it (`<file>.tfi`), or in
    the user's cache for a remote one. Checksums of lengths and of records are verified.

    Args:
        urls: a brace pattern, a glob, a directory (its `.tfrecord`, `.tfrecords` and `.tfrec`
            files), or a list of these, local or remote.
        features: what is taken of each Example: `{"image": "bytes", "label": "int64",
            "boxes": "float32[]"}`, where "[]" is a list, an array for numbers. In the feature lists
            of a SequenceExample "[]" is one value per step and "[][]" a list per step. A "?" at
            the end is for features that few records have. Names alone have the kinds of the first
            record, None takes all of its features, and `()` gives the records themselves as the
            field "record", as does None where they are no Examples.
        index: the directory of the index files; None for beside the files.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: nothing is there under a url.
        DataError: a file is cut, damaged, compressed, or no TFRecord file; a feature is not there,
            or of another kind or number than asked for.

    Examples:
        ```python
        ds = sw.tfrecord("train/*.tfrecord", features={"image": "bytes", "label": "int64"})
        ```
    """
    from shardwise.sources.tfrecord.source import TfRecordSource

    return Dataset(
        TfRecordSource(
            urls, features=features, index=index, storage=StorageOptions.of(storage, cache=cache)
        )
    )


@suggest_names
def tokens(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    block: int = 2048,
    dtype: Any = None,
    documents: bool = False,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Blocks of files of tokens; a sample's field "tokens" is an array `[block + 1]`.

    Inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`: the last token of a block is the first of
    the next. The dtype is the file's own. Formats: Megatron's `.bin` with its `.idx`, raw `.bin`
    (nanoGPT) and those with llm.c's header, `.npy`, and LitData's token chunks. Local files are
    mapped: they may be replaced by renaming while they are read; one that was written to raises.

    Args:
        urls: files, a brace pattern, a glob, a directory, or a list of these; local or of a store.
            LitData's chunks are named by their directory or their `index.json`.
        block: tokens of a sample, without the one that it shares with the next.
        dtype: of raw files, such as "uint16"; of others it must be what the file says.
        documents: False cuts each file into blocks, as it lies. True joins the documents in another
            order in each epoch and cuts that: for formats that say where documents end. Its epochs
            are the loader's: leave `epoch_size` alone.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        DataError: a file is damaged, cut or of another format, there are two dtypes, or no file has
            a whole block; url and offset say where. Raised at the first use.
        MissingShardError: nothing is there under a url.
        TypeError: dtype is none of integers.

    Examples:
        >>> import numpy as np
        >>> import shardwise as sw
        >>> np.arange(100, dtype=np.uint16).tofile("train.bin")
        >>> ds = sw.tokens("train.bin", block=8, dtype="uint16")
        >>> len(ds), ds[1]["tokens"]
        (12, array([ 8,  9, 10, 11, 12, 13, 14, 15, 16], dtype=uint16))
    """
    from shardwise.plan.arguments import whole
    from shardwise.sources.tokens.documents import JoinedDocuments
    from shardwise.sources.tokens.source import TokenBlocks

    if not isinstance(documents, bool):
        raise TypeError(f"documents={documents!r:.60}: True or False")
    source = JoinedDocuments if documents else TokenBlocks
    size = whole("block", block, least=1)
    return Dataset(
        source(urls, block=size, dtype=dtype, storage=StorageOptions.of(storage, cache=cache))
    )
