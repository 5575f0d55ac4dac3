"""Names of members, split at the first dot as by wids; and the paths of copies of remote shards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from shardwise.compat.environment import wids_cache_dir


def splitname(fname: str) -> tuple[str, str]:
    """Key and extension of a member.

    >>> splitname("train.v2/0001.seg.png")
    ('train.v2/0001', '.seg.png')
    """
    directory, slash, base = fname.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not dot:
        raise ValueError(f"the member {fname!r} has no extension")
    return f"{directory}{slash}{stem}", f".{extension}"


def group_by_key(names: Sequence[str]) -> list[list[int]]:
    """The places of names that stand together and have one key; names without a dot are left out.

    >>> group_by_key(["a.jpg", "a.cls", "README", "b.jpg"])
    [[0, 1], [3]]
    """
    places = [place for place, name in enumerate(names) if "." in name.rpartition("/")[2]]
    return [list(group) for _, group in groupby(places, key=lambda p: splitname(names[p])[0])]


def hash_dataset_name(input_string: str) -> str:
    """16 hex digits that stand for a URL, or for a list without a name."""
    return hashlib.sha256(input_string.encode("utf-8", "surrogateescape")).hexdigest()[:16]


_SAFE_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
# The longest name that file systems take is 255 bytes; a lock and a temporary file add to it.
_MAX_NAME = 120


class CacheLocalname:
    """Paths in a directory: the shard's name with a hash of its whole URL before the extension.

    >>> name = CacheLocalname("cache")
    >>> name("https://host/train/000.tar") == name("https://host/val/000.tar")
    False
    """

    def __init__(self, cachedir: str) -> None:
        self.cachedir = str(cachedir)

    def __call__(self, shard: str) -> str:
        """The path of the copy of a shard."""
        digest = hash_dataset_name(shard)
        base = re.split(r"[?#]", shard, maxsplit=1)[0].rpartition("/")[2]
        stem, dot, extension = _SAFE_NAME.sub("_", base).lstrip(".")[-_MAX_NAME:].partition(".")
        return str(Path(self.cachedir) / f"{stem or 'shard'}-{digest}{dot}{extension}")


class DefaultLocalname(CacheLocalname):
    """The same in the user's own directory, or in `WIDS_CACHE` where that is set."""

    def __init__(self, dldir: str | None = None) -> None:
        super().__init__(wids_cache_dir() if dldir is None else dldir)


# The name that older programs call.
hash_localname = DefaultLocalname
