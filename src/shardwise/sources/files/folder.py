"""A directory of files: one below it for each class, or files alone."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.errors import DataError, MissingShardError
from shardwise.sources.files.listing import Listing, Names, field_of, runs_of

__all__ = ["list_folder"]


@dataclass(slots=True)
class _Files:
    """Files of a walk: names, (bytes, modification time in ns), and suffixes."""

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
    counted = None if suffixes is None else tuple(suffix.lower() for suffix in suffixes)
    entries = _entries(root)
    classes = [entry.name for entry in entries if entry.is_dir()]
    loose = _Files([], [], set())
    for entry in entries:
        if not entry.is_dir():
            _add(loose, entry, entry.name, counted)
    if not classes:
        return _flat(root, loose, field)
    if loose.names:
        raise DataError(
            f"there are {len(loose.names)} files beside the {len(classes)} directories of classes, "
            f"such as {loose.names[0]!r}: move them, or name suffixes= that leave them out",
            url=root,
        )
    files = _Files([], [], set())
    counts = []
    for name in classes:
        before = len(files.names)
        _walk(files, os.path.join(root, name), name, counted)  # noqa: PTH118
        counts.append(len(files.names) - before)
    _require(files, root)
    columns: dict[str, Column] = {
        "cls": np.repeat(np.arange(len(classes), dtype=np.int64), counts),
        "class": np.repeat(np.array(classes, dtype=object), counts),
    }
    return Listing(
        root,
        Names(files.names),
        field or field_of(sorted(files.suffixes), url=root),
        columns,
        list(zip(classes, counts, strict=True)),
        _stats(files),
        tuple(classes),
    )


def _flat(root: str, files: _Files, field: str | None) -> Listing:
    _require(files, root)
    runs = [(f"{start}-{stop}", stop - start) for start, stop in runs_of(len(files.names))]
    name = field or field_of(sorted(files.suffixes), url=root)
    return Listing(root, Names(files.names), name, {}, runs, _stats(files))


def _walk(files: _Files, path: str, name: str, counted: tuple[str, ...] | None) -> None:
    """Add the files of a directory and those below it, in the order of their names."""
    for entry in _entries(path):
        below = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            _walk(files, entry.path, below, counted)
        elif entry.is_dir():
            raise DataError(
                "a link to a directory inside of a class, which might lead round in a ring: only "
                "classes may be links",
                url=entry.path,
            )
        else:
            _add(files, entry, below, counted)


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _add(
    files: _Files, entry: os.DirEntry[str], name: str, counted: tuple[str, ...] | None
) -> None:
    suffix = os.path.splitext(entry.name)[1]  # noqa: PTH122
    if counted is not None and suffix.lower() not in counted:
        return
    try:
        stat = entry.stat()
    except FileNotFoundError as error:
        raise MissingShardError("a link that leads nowhere", url=entry.path) from error
    files.names.append(name)
    files.stats.append((stat.st_size, stat.st_mtime_ns))
    files.suffixes.add(suffix)


def _require(files: _Files, root: str) -> None:
    if not files.names:
        raise MissingShardError("no file in the directory, or none with these suffixes", url=root)


def _stats(files: _Files) -> NDArray[np.int64]:
    return np.array(files.stats, dtype=np.int64).reshape(-1, 2)
