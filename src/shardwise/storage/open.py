"""Opening any file: its URL's scheme decides which class opens it, or reads it whole."""

from __future__ import annotations

import os

from shardwise.base.errors import StorageError
from shardwise.storage.local import LocalFile
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File
from shardwise.storage.remote import remote_storage
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
        MissingExtraError: what the scheme needs is not installed.
    """
    text = os.fspath(url)
    if is_local(text):
        file = LocalFile(local_path(text))
        file.open()
        return file
    return remote_storage(text).open_file(text, options or StorageOptions())


def read_whole(url: str, *, options: StorageOptions | None = None, once: bool = False) -> bytes:
    """All bytes of a file, without a request for its length and past the cache.

    With `once` the ranks of a process group read a remote file once.

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
    return remote_storage(url).read_whole(url, options or StorageOptions(), once=once)


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
