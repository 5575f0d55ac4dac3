"""A directory of files: one below it for each class, or files alone."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np

from shardwise.columns import Column
from shardwise.errors import DataError, MissingShardError
from shardwise.sources.files.listing import Listing, Names, field_of, runs_of


class _Walk:
    """Files of a directory: names, (bytes, modification time in ns), and suffixes.

    Args:
        root: the directory.
        counted: the suffixes of the files that count, in lower case; None for all.
    """

    def __init__(self, root: str, counted: Collection[str] | None) -> None:
        self.root = root
        self.counted = counted
        self.names: list[str] = []
        self.stats: list[tuple[int, int]] = []
        self.suffixes: set[str] = set()

    def add(self, entry: os.DirEntry[str], name: str) -> None:
        """Add a file, if its suffix counts."""
        suffix = os.path.splitext(entry.name)[1]  # noqa: PTH122
        if self.counted is not None and suffix.lower() not in self.counted:
            return
        try:
            stat = entry.stat()
        except FileNotFoundError as error:
            raise MissingShardError("a link that leads nowhere", url=entry.path) from error
        self.names.append(name)
        self.stats.append((stat.st_size, stat.st_mtime_ns))
        self.suffixes.add(suffix)

    def descend(self, path: str, name: str) -> None:
        """Add the files of a directory and those below it, in the order of their names."""
        for entry in _entries(path):
            below = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                self.descend(entry.path, below)
            elif entry.is_dir():
                raise DataError(
                    "a link to a directory inside of a class, which might lead round in a ring: "
                    "only classes may be links",
                    url=entry.path,
                )
            else:
                self.add(entry, below)


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
    counted = None if suffixes is None else {suffix.lower() for suffix in suffixes}
    entries = _entries(root)
    classes = [entry.name for entry in entries if entry.is_dir()]
    files = _Walk(root, counted)
    for entry in entries:
        if not entry.is_dir():
            files.add(entry, entry.name)
    if classes and files.names:
        raise DataError(
            f"there are {len(files.names)} files beside the {len(classes)} directories of classes, "
            f"such as {files.names[0]!r}: move them, or name suffixes= that leave them out",
            url=root,
        )
    ends = [0]
    for name in classes:
        files.descend(os.path.join(root, name), name)  # noqa: PTH118
        ends.append(len(files.names))
    if not files.names:
        raise MissingShardError("no file in the directory, or none with these suffixes", url=root)
    runs = runs_of(len(files.names))
    shards = [(f"{start}-{stop}", stop - start) for start, stop in runs]
    columns: dict[str, Column] = {}
    if classes:
        counts = np.diff(ends).tolist()
        shards = list(zip(classes, counts, strict=True))
        columns["cls"] = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        columns["class"] = np.repeat(np.array(classes, dtype=object), counts)
    name = field or field_of(sorted(files.suffixes), url=root)
    stats = np.array(files.stats, dtype=np.int64).reshape(-1, 2)
    return Listing(root, Names(files.names), name, columns, shards, stats, tuple(classes))


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)
