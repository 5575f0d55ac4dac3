"""A directory of files: one below it for each class, or files alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError
from shardwise.sources.files.listing import Beside, Listing, Names, field_of, is_media, runs_of

_logger = logging.getLogger("shardwise")


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


class _Pairs:
    """Files of one stem that are one sample: a picture, sound or video, and what lies beside it."""

    def __init__(self, root: str, suffixes: Collection[str] | None) -> None:
        self._root = root
        self._suffixes = suffixes
        # Files by stem and field.
        self._beside: dict[str, dict[str, _File]] = {}

    def main(self, files: Iterable[_File]) -> list[_File]:
        """Return the files that are samples; the others are kept as lying beside them."""
        kept, stems = [], set[str]()
        for file in files:
            stem, suffix = os.path.splitext(file.name)  # noqa: PTH122
            field = suffix[1:].lower() or "file"
            found = self._beside.setdefault(stem, {})
            is_main = is_media(suffix) if self._suffixes is None else suffix in self._suffixes
            if (stem in stems) if is_main else (field in found):
                raise DataError("two files of one sample have the same kind", url=file.name)
            if is_main:
                stems.add(stem)
                kept.append(file)
            else:
                found[field] = file
        return kept

    def columns(self, names: Sequence[str], taken: Collection[str]) -> dict[str, Beside]:
        """The files beside the named ones, by field; warns of samples that lack a field."""
        stems = [os.path.splitext(name)[0] for name in names]  # noqa: PTH122
        known = set(stems)
        alone = [stem for stem, found in self._beside.items() if found and stem not in known]
        if alone:
            name = next(iter(self._beside[alone[0]].values())).name
            raise DataError(
                f"{len(alone)} files belong to no picture, sound or video, the first is {name!r}: "
                "move them, or name the suffixes of the files that are samples by suffixes=",
                url=self._root,
            )
        fields = sorted({field for stem in stems for field in self._beside[stem]})
        for field in fields:
            if field in taken:
                raise DataError(f"the files '*.{field}' would be a second field {field!r}: rename "
                                "them", url=self._root)  # fmt: skip
            missing = sum(field not in self._beside[stem] for stem in stems)
            if missing:
                _logger.warning(
                    "%s: %d of %d samples have no .%s beside them, and lack the field %r",
                    self._root, missing, len(stems), field, field,
                )  # fmt: skip
        none = _File("", 0, 0)
        columns = {}
        for field in fields:
            listed = [self._beside[stem].get(field, none) for stem in stems]
            stats = np.array([file[1:] for file in listed], dtype=np.int64)
            columns[field] = Beside(Names([file.name for file in listed]), stats)
        return columns


def list_folder(
    root: str,
    *,
    suffixes: Collection[str] | None = None,
    field: str | None = None,
    pairs: bool = False,
) -> Listing:
    """List a directory; the arguments are those of `shardwise.files`.

    The directories in it are the classes, in the order of their names; the files of a class lie in
    it or below it, at any depth, and are ordered by name. Without directories the files have no
    class. Names that start with a dot are left out. Links to files and to classes are followed.
    """
    counted = None if suffixes is None else {suffix.lower() for suffix in suffixes}
    paired = _Pairs(root, counted) if pairs else None
    if paired is not None:
        counted = None
    entries = _entries(root)
    classes = [entry.name for entry in entries if entry.is_dir()]
    files = list(_walk([entry for entry in entries if not entry.is_dir()], "", counted))
    files = files if paired is None else paired.main(files)
    if classes and files:
        raise DataError(
            f"there are {len(files)} files beside the {len(classes)} directories of classes, "
            f"such as {files[0].name!r}: move them, or name suffixes= that leave them out",
            url=root,
        )
    ends = [0]
    for name in classes:
        found = list(_walk(_entries(os.path.join(root, name)), f"{name}/", counted))  # noqa: PTH118
        files += found if paired is None else paired.main(found)
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
    taken = (data_field, *columns)
    beside = {} if paired is None else paired.columns(names, taken)
    listed = Names(names), data_field, columns, shards, stats, tuple(classes)
    return Listing(root, *listed, beside=beside)


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)
