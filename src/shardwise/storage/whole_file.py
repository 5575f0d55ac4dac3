"""A file read whole, by one request where it is in a store."""

from __future__ import annotations

from shardwise.errors import DataError
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions
from shardwise.storage.pinned_object import PinnedObject

__all__ = ["read_whole"]

# Asked for without knowing the length: a file that is longer takes a second request.
_FIRST_BYTES = 64 << 20


def read_whole(url: str, *, options: StorageOptions | None = None) -> bytes:
    """All bytes of a file, without a request for its length: for files read from end to end.

    Raises:
        MissingShardError: it is not there.
        DataError: it is empty, in a store.
        StorageError: it could not be read.
    """
    if is_local(url):
        from shardwise.storage.local import LocalFile

        file = LocalFile(local_path(url))
        try:
            return file.read(0, file.stat().num_bytes)
        finally:
            file.close()
    remote = PinnedObject(url, options or StorageOptions())

    async def read() -> bytes:
        first = await remote.client().get(url, remote.key, 0, _FIRST_BYTES, "")
        remote.check(first.stat)
        num_bytes = first.stat.num_bytes
        if len(first.data) >= num_bytes:
            return bytes(first.data)
        rest = await remote.get(len(first.data), num_bytes)
        return b"".join((first.data, rest.data))

    try:
        return remote.process.run(read())
    except DataError as error:
        if type(error) is not DataError:
            raise
        # Nothing else has no first byte.
        raise DataError(f"the file is empty ({error.reason})", url=url) from error
