"""A bounded set of open files: a dataset may have more shards than a process may open.

Imports this package only.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import partial
from itertools import pairwise
from typing import Any

from shardwise.storage.limits import max_open_files
from shardwise.storage.open import open_file
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, FileStat

__all__ = ["FilePool"]


class FilePool:
    """The files used last, kept open.

    Any thread may call `get`. A file that falls out is closed as soon as nobody reads from it: a
    caller that holds on to one may go on reading. After a fork the child begins with no file, and
    a pool pickles without its files, but with its options and pins.

    Args:
        limit: how many files are kept open; None for `max_open_files()`.
        options: how remote files are reached; None for the defaults.
    """

    def __init__(self, limit: int | None = None, *, options: StorageOptions | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit={limit}: keep at least one file open")
        self._asked = limit
        self.limit = max_open_files() if limit is None else limit
        self.options = StorageOptions() if options is None else options
        self._pins: dict[str, FileStat] = {}
        self._followers: dict[str, str] | None = None
        self._kept = _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._asked, self.options, self._pins)

    def __len__(self) -> int:
        return len(self._kept.files)

    def pin(self, url: str, stat: FileStat) -> None:
        """Allow this version of a file only, however often it is opened; see `File.pin`."""
        if not stat.etag:
            return
        self._pins[url] = stat
        self._followers = None
        file = self._kept.files.get(url)
        if file is not None:
            file.pin(stat)

    def get(self, url: str) -> File:
        """The open file of a URL.

        Raises:
            MissingShardError: it is not there.
            StorageError: it can't be opened.
        """
        kept = self._kept
        if kept.pid != os.getpid():
            # A lock that another thread held at the fork would never be free in the child.
            kept = self._kept = _Kept()
        with kept.lock:
            file = kept.files.get(url)
            if file is not None:
                kept.files.move_to_end(url)
                return file
        # Opened outside the lock: a slow file system must not stop readers of other files.
        file = open_file(url, options=self.options)
        pinned = self._pins.get(url)
        if pinned is not None:
            file.pin(pinned)
            if hasattr(file, "next_file"):
                file.next_file = partial(self._next_file, url)
        with kept.lock:
            file = kept.files.setdefault(url, file)
            kept.files.move_to_end(url)
            while len(kept.files) > self.limit:
                kept.files.popitem(last=False)
        return file

    def _next_file(self, url: str) -> File | None:
        """The file that was pinned after another one: who reads in sequence reads them in turn."""
        followers = self._followers
        if followers is None:
            urls = list(self._pins)
            followers = self._followers = dict(pairwise(urls))
        found = followers.get(url)
        return None if found is None else self.get(found)

    def close(self) -> None:
        """Let go of all files."""
        self._kept = _Kept()


def _rebuild(limit: int | None, options: StorageOptions, pins: dict[str, FileStat]) -> FilePool:
    pool = FilePool(limit, options=options)
    pool._pins = pins
    return pool


class _Kept:
    """The files of one process."""

    __slots__ = ("files", "lock", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.files: OrderedDict[str, File] = OrderedDict()
