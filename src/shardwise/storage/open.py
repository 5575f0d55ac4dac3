"""Opening any file: its URL's scheme decides which class opens it, or reads it whole."""

from __future__ import annotations

import os
import sys

from shardwise.base.errors import DataError, StorageError
from shardwise.storage.local import LocalFile
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File
from shardwise.storage.urls import scheme_of, strip_file_scheme


def open_file(url: str | os.PathLike[str], *, options: StorageOptions | None = None) -> File:
    """Open a file for reading by byte ranges.

    A local file is opened at once. For a remote one no request is sent yet: its errors are raised
    by the first read, or by `open`.

    Args:
        url: a path, or a URL of any scheme that is supported.
        options: how remote files are reached; None for the defaults.

    Raises:
        MissingShardError: it does not exist.
        StorageError: the scheme is not supported, or the file can't be opened.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    text = os.fspath(url)
    if is_local(text):
        file = LocalFile(local_path(text))
        file.open()
        return file
    from shardwise.storage.remote import RemoteFile

    options = options or StorageOptions()
    remote = RemoteFile(text, options)
    if options.cache is None:
        return remote
    from shardwise.storage.cache import CachedFile, cache_of

    return CachedFile(remote, cache_of(options.cache))


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


def is_local(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a file of this machine."""
    return scheme_of(os.fspath(url)) in ("", "file")


def takes_many_ranges(url: str) -> bool:
    """Whether the store of a URL reads ranges of many objects by one request."""
    return scheme_of(url) == "ais"


def local_path(url: str | os.PathLike[str]) -> str:
    """The local path that a URL names: `file:` is stripped, `~` expanded.

    Raises:
        StorageError: the URL is not a local one, or names no path.
    """
    text = os.fspath(url)
    scheme = scheme_of(text)
    if scheme not in ("", "file"):
        raise StorageError(
            f"{text!r} is not a local file, which is what is needed here: give a path or a file: "
            "URL"
        )
    path = os.path.expanduser(strip_file_scheme(text))  # noqa: PTH111 - keeps './'
    if "\0" in path:
        raise StorageError(f"{text!r} holds a NUL, which no file's name can")
    return path


def give_up_reads(thread: int) -> None:
    """Cancel the request that a thread (its identifier) waits for: StorageError there."""
    # Where nothing remote was read, its modules are not imported: asyncio alone takes 25 ms.
    event_loop = sys.modules.get("shardwise.storage.requests.event_loop")
    if event_loop is not None:
        event_loop.give_up_reads(thread)
