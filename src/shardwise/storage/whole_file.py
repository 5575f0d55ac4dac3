"""A file read whole, by one request where it is in a store and not long."""

from __future__ import annotations

from shardwise.errors import DataError
from shardwise.storage.local import LocalFile
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions

__all__ = ["read_whole"]

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
    from shardwise.storage.requests.gather import gather_or_cancel

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
