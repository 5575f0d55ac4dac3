"""One function for each format that another loader wrote; see `shardwise.formats`. No logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from shardwise.dataset import Dataset
from shardwise.storage import StorageOptions

if TYPE_CHECKING:
    from shardwise.storage.cache import CacheSettings


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
            "boxes": "float32[]"}`, where "[]" is a list, an array for numbers. Names alone have the
            kinds of the first record, None takes all of its features, and `()` gives the records
            themselves as the field "record", as does None where they are no Examples.
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
