"""A bounded set of open files: a dataset may have more shards than a process may open.

Imports this package only.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from shardwise.storage.local import LocalFile
from shardwise.storage.open import open_file

__all__ = ["FilePool"]


class FilePool:
    """The files used last, kept open.

    Any thread may call `get`. A file that falls out is closed as soon as nobody reads from it: a
    caller that holds on to one may go on reading. After a fork the child begins with no file, and
    a pool pickles without its files.

    Args:
        limit: how many files are kept open. 128 stays far below the usual limit of 1,024.
    """

    def __init__(self, limit: int = 128) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit}: keep at least one file open")
        self.limit = limit
        self._kept = _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return FilePool, (self.limit,)

    def __len__(self) -> int:
        return len(self._kept.files)

    def get(self, url: str) -> LocalFile:
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
        file = open_file(url)
        with kept.lock:
            file = kept.files.setdefault(url, file)
            kept.files.move_to_end(url)
            while len(kept.files) > self.limit:
                kept.files.popitem(last=False)
        return file

    def close(self) -> None:
        """Let go of all files."""
        self._kept = _Kept()


class _Kept:
    """The files of one process."""

    __slots__ = ("files", "lock", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.files: OrderedDict[str, LocalFile] = OrderedDict()
