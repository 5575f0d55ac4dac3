"""Copies of remote files, whole or not at all; and the paths where they lie.

Keeps I6 and I8: a copy gets its name when it has the length that the store states; a killed
download leaves a hidden file that is never read. No command is ever run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from shardwise.base.errors import DataError, StorageError
from shardwise.compat.environment import wids_cache_dir
from shardwise.compat.wids.gone import finder
from shardwise.compat.wids.wids_cleanup import ExclusiveLock
from shardwise.extensions.remote.streams import open_stream
from shardwise.storage import atomic_write
from shardwise.storage.urls import scheme_of

__getattr__ = finder(__name__)

_CHUNK_BYTES = 8 << 20
_SAFE_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
# The longest name that file systems take is 255 bytes; a lock and a temporary file add to it.
_MAX_NAME = 120

Handler = Callable[[str, str], object]

# The last copies that this process made, for people who look: (remote, local, when, seconds).
recent_downloads: deque[tuple[str, str, float, float]] = deque(maxlen=1000)


def hash_dataset_name(input_string: str) -> str:
    """16 hex digits that stand for a URL, or for a list without a name."""
    return hashlib.sha256(input_string.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class CacheLocalname:
    """Paths in a directory: the shard's name with a hash of its whole URL before the extension."""

    def __init__(self, cachedir: str) -> None:
        self.cachedir = str(cachedir)

    def __call__(self, shard: str) -> str:
        digest = hash_dataset_name(shard)
        base = re.split(r"[?#]", shard, maxsplit=1)[0].rpartition("/")[2]
        stem, dot, extension = _SAFE_NAME.sub("_", base).lstrip(".")[-_MAX_NAME:].partition(".")
        return str(Path(self.cachedir) / f"{stem or 'shard'}-{digest}{dot}{extension}")


class DefaultLocalname(CacheLocalname):
    """The same in the user's own directory, or in `WIDS_CACHE` where that is set."""

    def __init__(self, dldir: str | None = None) -> None:
        super().__init__(wids_cache_dir() if dldir is None else dldir)


# Names that older programs use.
hash_localname = DefaultLocalname
ULockFile = ExclusiveLock


def download_file(
    remote: str,
    local: str | os.PathLike[str],
    handlers: Mapping[str, Handler] | None = None,
    verbose: bool = False,  # noqa: ARG001 - nothing is printed
) -> str:
    """Copy a file, remote or local, over what is at `local`; return `local`."""
    scheme = scheme_of(remote)
    handler = (handlers or {}).get(scheme)
    if isinstance(handler, str):
        raise TypeError(f"the handler of {scheme}: is a text, {handler!r}: give a function")
    if handler is None and scheme == "pipe":
        raise StorageError(
            f"can't copy {remote!r}: commands are not run; give the URL itself, or a function as "
            "handlers={'pipe': function}"
        )
    target = Path(local)
    target.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with atomic_write(target) as file:
        if handler is None:
            # The stream knows its length and never ends early, and closing it raises its errors.
            with open_stream(remote) as source:
                shutil.copyfileobj(source, file, _CHUNK_BYTES)
        else:
            handler(remote, file.name)
    recent_downloads.append((remote, str(target), time.time(), time.time() - began))
    return str(target)


def fetch(
    remote: str,
    local: str | os.PathLike[str],
    *,
    handlers: Mapping[str, Handler] | None = None,
    num_bytes: int | None = None,
) -> str:
    """Copy a file unless its copy is there already; of several processes one copies."""
    path = Path(local)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with ULockFile(f"{path}.lock"):
            if not path.exists():
                download_file(remote, path, handlers)
    found = path.stat().st_size
    if num_bytes is not None and found != num_bytes:
        raise DataError(
            f"the copy {str(path)!r} has {found} bytes, its list says {num_bytes}: remove the copy "
            "if the shard was replaced, or make the list anew",
            url=remote,
        )
    return str(path)


def download_and_open(
    remote: str,
    local: str | os.PathLike[str],
    mode: str = "rb",
    handlers: Mapping[str, Handler] | None = None,
    verbose: bool = False,  # noqa: ARG001 - nothing is printed
) -> IO[Any]:
    return open(fetch(remote, local, handlers=handlers), mode)
