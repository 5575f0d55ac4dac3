"""wids' `TarFileReader`: the members of a tar file by number; and their names, keys and fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import IO, Any

from shardwise.compat.wids.wids_mmtar import MMIndexedTar


class TarFileReader(MMIndexedTar):
    """The same under wids' other name, whose first argument is `file`."""

    def __init__(
        self, file: str | os.PathLike[str] | IO[bytes], index_file: Any = None, verbose: bool = True
    ) -> None:
        super().__init__(file, index_file, verbose)


def find_index_file(file: str | os.PathLike[str]) -> str:
    """The path of wids' pickled index of a tar file. It is neither read nor written here."""
    return f"{os.fspath(file)}.index"


def splitname(fname: str) -> tuple[str, str]:
    directory, slash, base = fname.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not dot:
        raise ValueError(f"the member {fname!r} has no extension")
    return f"{directory}{slash}{stem}", f".{extension}"


def group_by_key(names: Sequence[str]) -> list[list[int]]:
    """The positions of adjacent names that share a key, without names that have no dot."""
    places = [place for place, name in enumerate(names) if "." in name.rpartition("/")[2]]
    return [list(group) for _, group in groupby(places, key=lambda p: splitname(names[p])[0])]
