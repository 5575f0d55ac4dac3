"""Where the copy of a remote shard lies: a name of its own for every URL.

A name is the shard's own with a hash of its whole URL in front of the extension, so that
`train/000.tar` and `val/000.tar` do not meet. Directories are made when something is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from shardwise.compat.wids.environment import default_cache_dir

_SAFE_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
# The longest name that file systems take is 255 bytes; a lock and a temporary file add to it.
_MAX_NAME = 120


class CacheLocalname:
    """Names in a directory: called with a URL, gives the path of its copy.

    >>> name = CacheLocalname("cache")
    >>> name("https://host/train/000.tar") == name("https://host/val/000.tar")
    False
    """

    def __init__(self, cachedir: str) -> None:
        self.cachedir = str(cachedir)

    def __call__(self, shard: str) -> str:
        """The path of the copy of a shard."""
        digest = hashlib.sha256(shard.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        base = re.split(r"[?#]", shard, maxsplit=1)[0].rpartition("/")[2]
        stem, dot, extension = _SAFE_NAME.sub("_", base).lstrip(".")[-_MAX_NAME:].partition(".")
        return str(Path(self.cachedir) / f"{stem or 'shard'}-{digest}{dot}{extension}")


class DefaultLocalname(CacheLocalname):
    """The same in the user's own directory, or in `WIDS_CACHE` where that is set."""

    def __init__(self, dldir: str | None = None) -> None:
        super().__init__(default_cache_dir() if dldir is None else dldir)


def hash_localname(dldir: str | None = None) -> Callable[[str], str]:
    """The same, under the name that older programs call."""
    return DefaultLocalname(dldir)
