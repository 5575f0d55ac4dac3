"""One function a format: where the samples lie, in; a dataset of them, out. No logic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.base.plugins import find, own_names
from shardwise.dataset import Dataset
from shardwise.plan.arguments import whole
from shardwise.sources.tar.source import TarSource
from shardwise.sources.wrap.source import WrapSource
from shardwise.storage import StorageOptions

if TYPE_CHECKING:
    from shardwise.storage.options import CacheSettings


@suggest_names
def tar(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    index: str | PathLike[str] | None = None,
    fields: Sequence[str] | None = None,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
    accept_unfinished: bool = False,
    check: Literal["first use", "all"] = "first use",
    version: int | str | None = None,
) -> Dataset:
    """Samples in tar shards: the WebDataset format.

    Args:
        urls: a brace pattern (`"data/{000..123}.tar"`), a glob, a directory, a manifest file
            (`"train.swm"`, which `shardwise index --merge` makes), or a list of them; local, or
            of a store (`"s3://bucket/data/{000..123}.tar"`).
        index: the directory of the index files; None for beside the shards. Indexes of remote
            shards are looked for beside these, too, and have a copy on this machine.
        fields: the fields to read, as `select` takes them; None for all.
        cache: a local directory that keeps blocks of remote shards, up to 100 GB, or a
            `CacheSettings`; local shards are read without it.
        storage: how remote shards are reached: options, or the store's own settings, such as
            `{"endpoint": "http://localhost:9000"}`. None takes the environment's.
        accept_unfinished: whether shards without an end (two blocks of zeros) are taken as they
            are. They may have been cut between two samples, so without it they are a DataError.
        check: when a shard that a manifest file lists is compared with its entry: at its first use,
            or "all" before this returns. Other shards are all looked at when it is first used.
        version: the number (from 1 on) or fingerprint of an older version of a manifest file.

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
    check_names("fields", fields)
    check_choice("check", check, ("first use", "all"))
    if not isinstance(version, str | None):
        version = whole("version", version)
    dataset = Dataset(
        TarSource(
            urls,
            index=index,
            storage=StorageOptions.of(storage, cache=cache),
            accept_unfinished=accept_unfinished,
            check_all=check == "all",
            version=version,
        )
    )
    if check == "all":
        # Now, and once: copies in other processes do not look at all shards again.
        _ = dataset.manifest
    return dataset if fields is None else dataset.select(*fields)


def check_names(argument: str, names: Any) -> None:
    """Refuse anything but a sequence of names."""
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r}: give a sequence of names, such as ({names!r},)")
    if names is not None and not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be a sequence of names, not a {type(names).__name__}")


@suggest_names
def files(
    root_or_manifest: str | PathLike[str],
    *,
    root: str | PathLike[str] | None = None,
    path: str | None = None,
    suffixes: Sequence[str] | None = None,
    field: str | None = None,
    pairs: bool = False,
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
        path: the column of a list that has the paths; None for "path", "file_name", "filename",
            "file" or "audio_filepath".
        suffixes: of the files that count: `(".jpg", ".png")`; None for all.
        field: the name of the field with the bytes; None for the kind of the files.
        pairs: files of a directory that differ in their suffix alone are one sample: `a.jpg` has
            the bytes of `a.json` and `a.txt` as its fields "json" and "txt". `suffixes` are those
            of the files that are samples, by default pictures, sounds and videos.
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
        pairs=pairs,
        storage=StorageOptions.of(storage, cache=cache),
    )
    return Dataset(source)


@suggest_names
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
    # Compared by name: no package is imported for it, and no other class has this name.
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if name in own_names("wrapped"):
        return Dataset(find("wrapped", name)(dataset))
    return Dataset(WrapSource(dataset))
