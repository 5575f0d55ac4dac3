"""Ranges of many files, with the requests for all remote ones in flight at once."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.storage.file_pool import FilePool
from shardwise.storage.protocol import ReadRequest
from shardwise.storage.requests.ranges import byte_ranges
from shardwise.storage.requests.received import payloads_of

__all__ = ["read_files", "read_payloads"]

# A URL, and the arguments of `File.read_spans`: offsets, ends, begin.
UrlRanges = tuple[str, list[int], list[int], int]


def read_files(pool: FilePool, reads: Sequence[UrlRanges], buffer: memoryview) -> None:
    """Fill a buffer with ranges of several files.

    Local files are read one after the other. The requests for all remote ones are in flight
    together, at most `StorageOptions.max_requests` at a time.

    Args:
        pool: opens the files.
        reads: for each file its URL and the arguments of `File.read_spans`: `offsets`, `ends`,
            `begin`.
        buffer: writable and contiguous.

    Raises:
        DataError: a file is missing, has changed, or ends before a range does.
        StorageError: bytes could not be read.
    """
    remote: list[ReadRequest] = []
    for url, offsets, ends, begin in reads:
        file = pool.get(url)
        if file.is_remote:
            remote.append(ReadRequest(file, byte_ranges(offsets, ends, begin)))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    if remote:
        # All remote files of a pool are of one class: behind its cache, or without one.
        remote[0].file.read_many(remote, buffer)


def read_payloads(
    pool: FilePool, reads: Sequence[UrlRanges], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None] | None:
    """Parts of the buffer that `read_files` would fill, each as bytes that were copied once.

    Args:
        pool: opens the files.
        reads: as in `read_files`.
        starts: where each part begins in the buffer.
        lengths: bytes of each; negative for None.

    Returns:
        The parts; None for files that can only be read into a buffer: local and cached ones.

    Raises:
        DataError: as `read_files` says.
        StorageError: as `read_files` says.
    """
    files = [pool.get(url) for url, *_ in reads]
    if pool.options.cache is not None or not all(file.is_remote for file in files):
        return None
    from shardwise.storage.remote import receive

    requests = [
        ReadRequest(file, byte_ranges(offsets, ends, begin))
        for file, (_, offsets, ends, begin) in zip(files, reads, strict=True)
    ]
    return payloads_of(receive(requests), starts, lengths)
