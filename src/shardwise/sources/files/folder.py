"""A directory of files: one below it for each class, or files alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError
from shardwise.sources.files.listing import Listing, Names, field_of, runs_of


class _File(NamedTuple):
    name: str
    num_bytes: int
    mtime_ns: int


def _walk(
    entries: Iterable[os.DirEntry[str]], prefix: str, counted: Collection[str] | None
) -> Iterator[_File]:
    """Files and those of directories, in the order of their names, if their suffixes count."""
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(_entries(entry.path), f"{name}/", counted)
        elif entry.is_dir():
            raise DataError(
                "a link to a directory inside of a class, which might lead round in a ring: only "
                "classes may be links",
                url=entry.path,
            )
        elif counted is None or _suffix(name).lower() in counted:
            try:
                stat = entry.stat()
            except FileNotFoundError as error:
                raise MissingShardError("a link that leads nowhere", url=entry.path) from error
            yield _File(name, stat.st_size, stat.st_mtime_ns)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122


def list_folder(
    root: str, *, suffixes: Collection[str] | None = None, field: str | None = None
) -> Listing:
    """List a directory; the arguments are those of `shardwise.files`.

    The directories in it are the classes, in the order of their names; the files of a class lie in
    it or below it, at any depth, and are ordered by name. Without directories the files have no
    class. Names that begin with a dot are left out. Links to files and to classes are followed.
    """
    counted = None if suffixes is None else {suffix.lower() for suffix in suffixes}
    entries = _entries(root)
    classes = [entry.name for entry in entries if entry.is_dir()]
    files = list(_walk([entry for entry in entries if not entry.is_dir()], "", counted))
    if classes and files:
        raise DataError(
            f"there are {len(files)} files beside the {len(classes)} directories of classes, "
            f"such as {files[0].name!r}: move them, or name suffixes= that leave them out",
            url=root,
        )
    ends = [0]
    for name in classes:
        files += _walk(_entries(os.path.join(root, name)), f"{name}/", counted)  # noqa: PTH118
        ends.append(len(files))
    if not files:
        raise MissingShardError("no file in the directory, or none with these suffixes", url=root)
    shards = [(f"{start}-{stop}", stop - start) for start, stop in runs_of(len(files))]
    columns: dict[str, Column] = {}
    if classes:
        counts = np.diff(ends).tolist()
        shards = list(zip(classes, counts, strict=True))
        columns["cls"] = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        columns["class"] = np.repeat(np.array(classes, dtype=object), counts)
    names, sizes, times = zip(*files, strict=True)
    data_field = field or field_of(sorted(set(map(_suffix, names))), url=root)
    stats = np.array([sizes, times], dtype=np.int64).T
    return Listing(root, Names(names), data_field, columns, shards, stats, tuple(classes))


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)
