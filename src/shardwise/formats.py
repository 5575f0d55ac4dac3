"""One function a format: where the samples lie, in; a dataset of them, out. No logic."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from shardwise.dataset import Dataset
from shardwise.sources.tar.source import TarSource
from shardwise.sources.wrap import WrapSource

__all__ = ["tar", "wrap"]


def tar(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    index: str | PathLike[str] | None = None,
    fields: Sequence[str] | None = None,
    cache: str | PathLike[str] | None = None,  # noqa: ARG001 - local files are read where they lie
) -> Dataset:
    """Samples in tar shards: the WebDataset format.

    Args:
        urls: a brace pattern (`"data/{000..123}.tar"`), a glob, a directory, or a list of these.
        index: the directory of the index files; None for beside the shards.
        fields: the fields to read, as `select` takes them; None for all.
        cache: a directory for what is read of remote shards; local ones need none and ignore it.

    Raises:
        MissingShardError: nothing is there under a url.
        StaleIndexError: a shard has changed since it was indexed.
        ValueError: a field is not there.

    Example:
        ds = sw.tar("train/{000..099}.tar", fields=("jpg", "cls")).decode(cls=int)
    """
    if isinstance(fields, str):
        raise TypeError(f"fields={fields!r}: give a sequence of names, such as ({fields!r},)")
    dataset = Dataset(TarSource(urls, index=index))
    return dataset if fields is None else dataset.select(*fields)


def wrap(dataset: Any) -> Dataset:
    """Samples of any map-style dataset: whatever has `__len__` and `__getitem__`.

    Items that are dicts keep their names, tuples and lists become the fields "0", "1", ...,
    anything else the field "value". The key is the item's "__key__" or its index. Decoders are
    applied to the values as they are. The fingerprint knows the dataset's type and length, not its
    content. Threads may ask for items side by side: the dataset must allow it.

    Raises:
        TypeError: it has no length or can't be indexed.

    Example:
        >>> import shardwise as sw
        >>> sw.wrap([("a", 1), ("b", 2)])[0]
        {'__key__': '0', '0': 'a', '1': 1}
    """
    return Dataset(WrapSource(dataset))
