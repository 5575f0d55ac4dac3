"""Ranges of many files, with all requests in flight at once.

Imports this package only; what reads remote files, where one is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.storage.file_pool import FilePool
from shardwise.storage.requests.received import Piece, copy_pieces, payloads_of

__all__ = ["read_files", "read_payloads"]

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
    # All of them are behind the pool's cache, or none is.
    remote: list[Any] = []
    for url, offsets, ends, begin in wanted:
        file = pool.get(url)
        if file.is_remote:
            remote.append((file, offsets, ends, begin))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    if remote and pool.options.cache is None:
        copy_pieces(_read_remote(remote), buffer)
    elif remote:
        from shardwise.storage.cache import read_cached

        read_cached(remote, buffer)


def read_payloads(
    pool: FilePool, wanted: Sequence[Wanted], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None] | None:
    """Parts of what `read_files` would read, each as bytes of its own that were copied once.

    Args:
        pool: opens the files.
        wanted: as in `read_files`.
        starts: where each part begins in the buffer that `read_files` would fill.
        lengths: bytes of each; negative for None.

    Returns:
        The parts; None for files that are read into a buffer: local ones, and those of a cache.

    Raises:
        DataError: as `read_files` says.
        StorageError: as `read_files` says.
    """
    remote = [(pool.get(url), offsets, ends, begin) for url, offsets, ends, begin in wanted]
    if pool.options.cache is not None or not all(read[0].is_remote for read in remote):
        return None
    return payloads_of(_read_remote(remote), starts, lengths)


def _read_remote(wanted: Sequence[Any]) -> list[Piece]:
    from shardwise.storage.remote import read_remote

    return read_remote(wanted)
