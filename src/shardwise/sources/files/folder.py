"""Folders as rows of files: one below it for each class, or files alone; and what such rows are."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError

# Files per shard, without classes.
_RUN = 1024
_KINDS = {
    "image": "jpg jpeg png webp gif bmp tif tiff ppm pgm jp2 avif heic",
    "audio": "wav mp3 flac ogg opus m4a aac",
    "video": "mp4 mkv webm avi mov mpg mpeg m4v",
    "text": "txt",
}
_KIND_OF = {f".{ext}": kind for kind, text in _KINDS.items() for ext in text.split()}


class Names(Sequence[str]):
    """Many names in one buffer: some 30 bytes each, where a list of str takes 90."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._text = b"".join(encoded)
        self._ends: NDArray[np.int64] = np.cumsum([len(name) for name in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: Any) -> Any:
        begin = int(self._ends[i - 1]) if i else 0
        return self._text[begin : int(self._ends[i])].decode("utf-8", "surrogateescape")

    def digest(self) -> str:
        """A digest of all names: 16 hex digits."""
        digest = hashlib.sha256(self._ends.astype("<i8").tobytes())
        digest.update(self._text)
        return digest.hexdigest()[:16]


class Beside(NamedTuple):
    """The files of one more field: "" where a sample has none; and their `stats`."""

    names: Names
    stats: NDArray[np.int64]


@dataclass(frozen=True)
class Listing:
    """Files, in the order of their samples.

    Attributes:
        base: the directory or URL that the names are relative to.
        names: the files, with "/" between directories; they are the samples' keys.
        field: the field that has their bytes.
        columns: all other fields: an array, or a list with None where a value is missing.
        shards: (name, number of files), in order.
        stats: int64 `[files, 2]`, bytes and modification time in ns; None if they are unknown.
        classes: the names of the classes; () without classes.
        opened_ns: when they were listed without stats.
        beside: for each field of pairs its files.
    """

    base: str
    names: Names
    field: str
    columns: Mapping[str, Column]
    shards: Sequence[tuple[str, int]]
    stats: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    opened_ns: int = 0
    beside: Mapping[str, Beside] = dataclasses.field(default_factory=dict)

    def digest(self) -> str:
        """A digest of the names of all files, as hex digits."""
        parts = [self.names.digest()]
        parts += [f"{name} {files.names.digest()}" for name, files in sorted(self.beside.items())]
        return " ".join(parts)


def is_media(suffix: str) -> bool:
    """Whether files with this suffix are pictures, sounds or videos."""
    return _KIND_OF.get(suffix.lower(), "text") != "text"


def runs_of(count: int) -> list[tuple[int, int]]:
    """Shards of files without classes, as (start, stop)."""
    return [(start, min(start + _RUN, count)) for start in range(0, count, _RUN)]


def field_of(suffixes: Sequence[str], *, url: str) -> str:
    """The name of the field with these files' bytes, by the kind of their suffixes.

    "image", "audio", "video" or "text", whatever the suffixes of that kind; where the kind is not
    known, the suffix itself, without its dot. Files of several kinds are a DataError.
    """
    kinds = {suffix: _KIND_OF.get(suffix.lower(), suffix.lower()[1:]) for suffix in suffixes}
    if len(set(kinds.values())) > 1:
        meant = next(filter(is_media, sorted(kinds)), ".jpg")
        raise DataError(
            f"files of several kinds: {', '.join(sorted(map(repr, kinds)))}; name those that are "
            f"meant, as suffixes=({meant!r},), or the field for all of them, as field='data'; "
            "or pairs=True, if a.jpg and a.json are one sample (`shardwise convert` has "
            f"--suffixes {meant}, --field data and --pairs; other commands take a dataset of a "
            "program, as file.py:name)",
            url=url,
        )
    return next(iter(kinds.values()), "") or "file"


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
