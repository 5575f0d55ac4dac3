"""A listing of files: their names, and the values and sizes that belong to each."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Column
from shardwise.base.errors import DataError

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
        raise DataError(
            f"files of several kinds: {', '.join(sorted(map(repr, kinds)))}; name those that are "
            "meant, as suffixes=('.jpg', '.png'), or the field for all of them, as field='data'; "
            "or pairs=True, if a.jpg and a.json are one sample (`shardwise convert` has "
            "--suffixes .jpg,.png, --field data and --pairs)",
            url=url,
        )
    return next(iter(kinds.values()), "") or "file"
