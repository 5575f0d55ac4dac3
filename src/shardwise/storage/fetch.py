"""Ranges of many files into one buffer, with all requests in flight at once.

Imports this package only; what reads remote files, where one is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.storage.pool import FilePool
from shardwise.storage.protocol import File

__all__ = ["read_files"]

Wanted = tuple[str, list[int], list[int], int]


def read_files(pool: FilePool, wanted: Sequence[Wanted], buffer: memoryview) -> None:
    """Fill a buffer with ranges of several files.

    Local files are read one after the other. The requests for all remote ones are in flight
    together, as many as `StorageOptions.max_requests` allows.

    Args:
        pool: opens the files.
        wanted: for each file its URL and what `File.read_spans` takes: `offsets`, `ends`, `begin`.
        buffer: writable and contiguous.

    Raises:
        DataError: a file is missing, has changed, or ends before a range does.
        StorageError: bytes could not be read.
    """
    remote: list[tuple[File, list[int], list[int], int]] = []
    for url, offsets, ends, begin in wanted:
        file = pool.get(url)
        if file.is_remote:
            remote.append((file, offsets, ends, begin))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    if remote:
        _read_remote(pool, remote, buffer)


def _read_remote(pool: FilePool, wanted: Sequence[Any], buffer: memoryview) -> None:
    """Read the remote files of a pool: they are all behind its cache, or none is."""
    if pool.options.cache is None:
        from shardwise.storage.remote import read_remote

        read_remote(wanted, buffer)
    else:
        from shardwise.storage.cache import read_cached

        read_cached(wanted, buffer)
