"""A directory of files: one below it for each class, or files alone. Imports numpy and errors."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.errors import DataError, MissingShardError
from shardwise.sources.files.listing import Listing, Names, field_of

__all__ = ["list_folder"]

# Files without classes are shards of so many.
_RUN = 1024


@dataclass(slots=True)
class _Found:
    names: list[str]
    stats: list[tuple[int, int]]
    suffixes: set[str]


def list_folder(
    root: str, *, suffixes: Collection[str] | None = None, field: str | None = None
) -> Listing:
    """List a directory.

    The directories in it are the classes, in the order of their names; the files of a class lie in
    it or below it, at any depth, and are ordered by name. Without directories the files have no
    class. Names that begin with a dot are left out. Links to files and to classes are followed.

    Args:
        root: the directory.
        suffixes: the suffixes of the files that count, in any case of letters; None for all.
        field: the name of the field with the bytes; None for what the suffixes say.

    Raises:
        MissingShardError: there is no such file.
        DataError: there are files beside the classes, or files of several kinds.
    """
    wanted = None if suffixes is None else tuple(suffix.lower() for suffix in suffixes)
    with os.scandir(root) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    classes = sorted(entry.name for entry in visible if entry.is_dir())
    loose = _Found([], [], set())
    for entry in sorted(visible, key=lambda entry: entry.name):
        if not entry.is_dir():
            _add(loose, entry, entry.name, wanted)
    if not classes:
        return _flat(root, loose, field)
    if loose.names:
        raise DataError(
            f"there are {len(loose.names)} files beside the {len(classes)} directories of classes, "
            f"such as {loose.names[0]!r}: move them, or name suffixes= that leave them out",
            url=root,
        )
    found = _Found([], [], set())
    counts = []
    for name in classes:
        before = len(found.names)
        _walk(found, os.path.join(root, name), name, wanted)  # noqa: PTH118
        counts.append(len(found.names) - before)
    _require(found, root)
    columns: dict[str, Column] = {
        "cls": np.repeat(np.arange(len(classes), dtype=np.int64), counts),
        "class": np.repeat(np.array(classes, dtype=object), counts),
    }
    return Listing(
        root,
        Names(found.names),
        field or field_of(sorted(found.suffixes), url=root),
        columns,
        list(zip(classes, counts, strict=True)),
        _table(found),
        tuple(classes),
    )


def _flat(root: str, found: _Found, field: str | None) -> Listing:
    _require(found, root)
    count = len(found.names)
    runs = [
        (f"{start}-{min(start + _RUN, count)}", min(_RUN, count - start))
        for start in range(0, count, _RUN)
    ]
    name = field or field_of(sorted(found.suffixes), url=root)
    return Listing(root, Names(found.names), name, {}, runs, _table(found))


def _walk(found: _Found, path: str, name: str, wanted: tuple[str, ...] | None) -> None:
    """Add the files of a directory and those below it, in the order of their names."""
    for entry in _entries(path):
        below = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            _walk(found, entry.path, below, wanted)
        elif entry.is_dir():
            raise DataError(
                "a link to a directory inside of a class, which might lead round in a ring: only "
                "classes may be links",
                url=entry.path,
            )
        else:
            _add(found, entry, below, wanted)


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return iter(sorted(visible, key=lambda entry: entry.name))


def _add(found: _Found, entry: os.DirEntry[str], name: str, wanted: tuple[str, ...] | None) -> None:
    suffix = os.path.splitext(entry.name)[1]  # noqa: PTH122
    if wanted is not None and suffix.lower() not in wanted:
        return
    try:
        stat = entry.stat()
    except FileNotFoundError as error:
        raise MissingShardError("a link that leads nowhere", url=entry.path) from error
    found.names.append(name)
    found.stats.append((stat.st_size, stat.st_mtime_ns))
    found.suffixes.add(suffix)


def _require(found: _Found, root: str) -> None:
    if not found.names:
        raise MissingShardError("no file in the directory, or none with these suffixes", url=root)


def _table(found: _Found) -> NDArray[np.int64]:
    return np.array(found.stats, dtype=np.int64).reshape(-1, 2)
