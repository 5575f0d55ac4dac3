"""One door to all storage: a URL's scheme decides which class opens it."""

from __future__ import annotations

import os
from dataclasses import replace

from shardwise.errors import StorageError
from shardwise.storage.local import LocalFile
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File
from shardwise.storage.urls import scheme_of, strip_file_scheme

__all__ = ["is_local", "local_path", "open_file", "takes_many_ranges"]


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
    return _open_remote(text, options or StorageOptions())


def _open_remote(url: str, options: StorageOptions) -> File:
    """The file of a remote URL, behind the cache that the options name."""
    from shardwise.storage.remote import RemoteFile

    if options.cache is None:
        return RemoteFile(url, options)
    from shardwise.storage.cache import CachedFile, cache_of

    # The cache fetches ahead under block locks, so that processes share each request.
    return CachedFile(RemoteFile(url, replace(options, prefetch_bytes=0)), cache_of(options.cache))


def is_local(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a file of this machine."""
    return scheme_of(os.fspath(url)) in ("", "file")


def takes_many_ranges(url: str) -> bool:
    """Whether the store of a URL reads ranges of many objects by one request."""
    return scheme_of(url) == "ais"


def local_path(url: str | os.PathLike[str]) -> str:
    """The local path that a URL names: `file:` is stripped, `~` expanded.

    Raises:
        StorageError: the URL is not a local one.
    """
    text = os.fspath(url)
    scheme = scheme_of(text)
    if scheme not in ("", "file"):
        raise StorageError(
            f"{text!r} is not a local file, which is what is needed here: give a path or a file: "
            "URL"
        )
    return os.path.expanduser(strip_file_scheme(text))  # noqa: PTH111 - keeps './'
