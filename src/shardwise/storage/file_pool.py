"""A bounded set of open files, and ranges of many of them, with all requests in flight at once.

A dataset may have more shards than a process may open.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from shardwise.storage.local import max_open_files
from shardwise.storage.open import is_local, open_file, remote_storage
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, FileStat, ReadRequest, byte_ranges
from shardwise.storage.versions import require_same


class FilePool:
    """The files used last.

    Any thread may call `get`. The least recently used file is dropped, and closed when its last
    reader drops it. After a fork the child starts without files; a pool pickles with its options
    and pins, and without its files.
    """

    def __init__(self, *, options: StorageOptions | None = None) -> None:
        self.limit = max_open_files()
        self.options = StorageOptions() if options is None else options
        self._pins: dict[str, FileStat] = {}
        self._open = _OpenFiles()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy: another thread may pin a file while it is pickled.
        return _rebuild, (self.options, dict(self._pins))

    def __len__(self) -> int:
        return len(self._open.files)

    def pin(self, url: str, stat: FileStat) -> None:
        """Allow this version of a file only, however often it is opened; see `File.pin`."""
        if not is_local(url) and not stat.etag:
            return
        require_same(self._pins.setdefault(url, stat), stat, url)
        file = self._open.files.get(url)
        if file is not None:
            file.pin(stat)

    def get(self, url: str) -> File:
        """The open file of a URL."""
        opened = self._open
        if opened.pid != os.getpid():
            # A lock that another thread had at the fork would never be released in the child.
            opened = self._open = _OpenFiles()
        with opened.lock:
            file = opened.files.get(url)
            if file is not None:
                opened.files.move_to_end(url)
                return file
        # Opened outside the lock: a slow file system must not stop readers of other files.
        file = open_file(url, options=self.options)
        pinned = self._pins.get(url)
        if pinned is not None:
            file.pin(pinned)
        with opened.lock:
            file = opened.files.setdefault(url, file)
            opened.files.move_to_end(url)
            while len(opened.files) > self.limit:
                opened.files.popitem(last=False)
        return file

    def close(self) -> None:
        self._open = _OpenFiles()


def _rebuild(options: StorageOptions, pins: dict[str, FileStat]) -> FilePool:
    pool = FilePool(options=options)
    for url, stat in pins.items():
        pool.pin(url, stat)
    return pool


class _OpenFiles:
    """The files of one process."""

    __slots__ = ("files", "lock", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.files: OrderedDict[str, File] = OrderedDict()


# A URL, and the arguments of `File.read_spans`: `offsets`, `ends`, `begin`.
UrlRanges = tuple[str, list[int], list[int], int]


def read_files(pool: FilePool, reads: Sequence[UrlRanges], buffer: memoryview) -> None:
    """Fill a buffer with ranges of several files; raises as `File` does.

    Local files are read one after the other. The requests for all remote ones are in flight
    together, at most `StorageOptions.max_requests` at a time.
    """
    remote: list[ReadRequest] = []
    for url, offsets, ends, begin in reads:
        file = pool.get(url)
        if file.is_remote:
            remote.append(ReadRequest(file, byte_ranges(offsets, ends, begin)))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    if remote:
        # All remote files of a pool are of one class: cached, or without a cache.
        remote[0].file.read_many(remote, buffer)


def read_payloads(
    pool: FilePool, reads: Sequence[UrlRanges], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None] | None:
    """Parts of the buffer that `read_files` would fill, each as bytes that were copied once.

    A part of negative length is None. Returns None for local and cached files.
    """
    files = [pool.get(url) for url, *_ in reads]
    cached = pool.options.cache is not None
    if not files or cached or not all(file.is_remote for file in files):
        return None
    requests = [
        ReadRequest(file, byte_ranges(offsets, ends, begin))
        for file, (_, offsets, ends, begin) in zip(files, reads, strict=True)
    ]
    return remote_storage(reads[0][0]).read_payloads(requests, starts, lengths)
