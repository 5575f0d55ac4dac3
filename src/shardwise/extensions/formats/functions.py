"""`sw.jsonl`, `sw.mds`, `sw.litdata`, `sw.tfrecord` and `sw.tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from shardwise.base.arguments import check_flag, suggest_names
from shardwise.dataset import Dataset
from shardwise.storage import StorageOptions
from shardwise.storage.options import CacheSettings


@suggest_names
def jsonl(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    fields: Sequence[str] | None = None,
    *,
    index: str | PathLike[str] | None = None,
    memory_bytes: int = 1 << 30,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """JSON lines: each line is a sample, and the entries of its object are the fields.

    Each file is read once for where its lines start; that is kept beside it (`<file>.jli`), or in
    the user's cache for a remote one, and mapped. Blank lines are skipped. The key is the file's
    name and the number of the line among the samples. Compressed files (gzip, zstd, bzip2, known by
    their first bytes) need pyarrow; each is decompressed to a temporary file while it is read.

    Args:
        urls: a brace pattern, a glob, a directory (its `.jsonl` and `.ndjson` files, and with
            `.json` those that end in `.gz` or `.zst`), or a list of them, local or remote.
        fields: names of the entries to take; one that none of the first 1,000 lines has is an
            error, unless it ends in "?". None takes all that the first 1,000 lines have, and `()`
            the line's whole value, whatever it is, as the field "record".
        index: the directory of the index files; None for beside the files.
        memory_bytes: of the decompressed files that a process keeps, which are four at least.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: nothing is there under a url.
        DataError: a file is of another format or damaged; a line is not a JSON object.

    Examples:
        ```python
        ds = sw.jsonl("s3://bucket/c4/*.json.gz", fields=("text",))
        ```
    """
    from shardwise.extensions.formats.jsonl.source import JsonLinesSource

    return Dataset(
        JsonLinesSource(
            urls,
            fields=fields,
            index=index,
            memory_bytes=memory_bytes,
            storage=StorageOptions.of(storage, cache=cache),
        )
    )


@suggest_names
def mds(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    memory_bytes: int = 1 << 30,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Samples in MDS shards, as MosaicML Streaming's `MDSWriter` wrote them.

    Columns of numbers and of arrays of one shape are arrays, texts are str, JSON is parsed;
    "bytes", "jpeg" and "png" are bytes that decoders read, and so is "pkl": nothing is unpickled.
    The key is the shard's name and the number in it. Compressed shards (zstd, gzip, bz2, brotli,
    snappy) need pyarrow; each is decompressed whole.

    Args:
        urls: a directory with an `index.json`, local or remote, or a list of them (streams), whose
            samples stand one after the other; all must have the same columns.
        memory_bytes: of the decompressed shards that a process keeps, which are four at least.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: the index, or a shard that it names, does not exist.
        DataError: an index or a shard is damaged, cut, or of another version.

    Examples:
        ```python
        ds = sw.mds("s3://bucket/imagenet/train").decode(x=sw.image(size=224))
        ```
    """
    from shardwise.extensions.formats.mds.source import MdsSource

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
        MissingShardError: the index, or a chunk that it names, does not exist.
        DataError: an index or a chunk is damaged, cut, encrypted, or made by serialisers that
            are not LitData's own.

    Examples:
        ```python
        ds = sw.litdata("s3://bucket/optimized").decode(image=sw.image(size=224))
        ```
    """
    from shardwise.extensions.formats.litdata.source import LitDataSource

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
            files), or a list of them, local or remote.
        features: the features to take of each Example: `{"image": "bytes", "label": "int64",
            "boxes": "float32[]"}`, where "[]" is a list, an array for numbers. In the feature lists
            of a SequenceExample "[]" is one value per step and `"[][]"` a list per step. A "?" at
            the end is for features that few records have. Names alone have the kinds of the first
            record, None takes all of its features, and `()` gives the records themselves as the
            field "record", as does None where they are not Examples.
        index: the directory of the index files; None for beside the files.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        MissingShardError: nothing is there under a url.
        DataError: a file is cut, damaged, compressed, or not a TFRecord file; a feature is missing,
            or of another kind or number than requested.

    Examples:
        ```python
        ds = sw.tfrecord("train/*.tfrecord", features={"image": "bytes", "label": "int64"})
        ```
    """
    from shardwise.extensions.formats.tfrecord.source import TfRecordSource

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
        urls: files, a brace pattern, a glob, a directory, or a list of them; local or of a store.
            LitData's chunks are named by their directory or their `index.json`.
        block: tokens of a sample, without the one that it shares with the next.
        dtype: of raw files, such as "uint16"; of others it must be the file's own.
        documents: False cuts each file into blocks, as it lies. True joins the documents in another
            order in each epoch and cuts that: for formats that say where documents end. Its epochs
            are the loader's: leave `epoch_size` alone.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        DataError: a file is damaged, cut or of another format, there are two dtypes, or no file has
            a whole block; url and offset say where. Raised at the first use.
        MissingShardError: nothing is there under a url.
        TypeError: dtype is not an integer type.

    Examples:
        >>> import numpy as np
        >>> import shardwise as sw
        >>> np.arange(100, dtype=np.uint16).tofile("train.bin")
        >>> ds = sw.tokens("train.bin", block=8, dtype="uint16")
        >>> len(ds), ds[1]["tokens"]
        (12, array([ 8,  9, 10, 11, 12, 13, 14, 15, 16], dtype=uint16))
    """
    from shardwise.extensions.formats.tokens.documents import JoinedDocuments
    from shardwise.extensions.formats.tokens.source import TokenBlocks
    from shardwise.plan.arguments import whole

    check_flag("documents", documents)
    source = JoinedDocuments if documents else TokenBlocks
    size = whole("block", block, least=1)
    return Dataset(
        source(urls, block=size, dtype=dtype, storage=StorageOptions.of(storage, cache=cache))
    )
