"""Ranges of many files, with the requests for all remote ones in flight at once; whole files."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.errors import DataError
from shardwise.storage.file_pool import FilePool
from shardwise.storage.local import LocalFile
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import ReadRequest
from shardwise.storage.requests.ranges import byte_ranges, payloads_of

__all__ = ["read_files", "read_payloads", "read_whole"]

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


# Asked for without knowing the length. Longer requests would be late and sent again, and through
# fsspec not be over within `attempt_timeout_s`: the rest of a file is read in several at once.
_FIRST_BYTES = 8 << 20


def read_whole(url: str, *, options: StorageOptions | None = None) -> bytes:
    """All bytes of a file, without a request for its length and past the cache.

    Raises:
        MissingShardError: it is not there.
        StorageError: it could not be read.
    """
    if is_local(url):
        file = LocalFile(local_path(url))
        try:
            return file.read(0, file.stat().num_bytes)
        finally:
            file.close()
    from shardwise.storage.pinned_object import PinnedObject
    from shardwise.storage.requests.event_loop import gather_or_cancel

    remote = PinnedObject(url, options or StorageOptions())

    async def read() -> bytes:
        try:
            first = await remote.client().get(url, remote.key, 0, _FIRST_BYTES, "")
        except DataError as error:
            # An empty file has no first byte: stores answer with HTTP 416.
            if type(error) is not DataError or (await remote.current()).num_bytes:
                raise
            return b""
        remote.check(first.stat)
        num_bytes = first.stat.num_bytes
        if len(first.data) >= num_bytes:
            return bytes(first.data)
        size = remote.client().latency.max_request_bytes
        starts = range(len(first.data), num_bytes, size)
        rest = await gather_or_cancel(
            remote.get(start, min(start + size, num_bytes)) for start in starts
        )
        return b"".join((first.data, *(reply.data for reply in rest)))

    return remote.process.run(read())
