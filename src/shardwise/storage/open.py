"""Opening any file: its scheme decides which class opens it, or reads it whole.

Remote storage, which reads, writes and lists files of other machines, is an extension,
`shardwise.extensions.remote`. The core finds it in `shardwise.base.plugins`, and knows no more of
it than its protocol.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shardwise.base.errors import MissingExtraError, StorageError
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.storage.local import LocalFile
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, ReadRequest
from shardwise.storage.urls import scheme_of, strip_file_scheme


class RemoteStorage(Protocol):
    """Files by URL; see `File` for what its methods raise."""

    def open_file(self, url: str, options: StorageOptions) -> File:
        """Make a file; no request is sent yet."""
        ...

    def read_whole(self, url: str, options: StorageOptions, *, once: bool = False) -> bytes:
        """Read all bytes of a file, without a request for its length and past the cache.

        With `once` the ranks of a process group read it once.
        """
        ...

    def read_payloads(
        self, requests: Sequence[ReadRequest], starts: Sequence[int], lengths: Sequence[int]
    ) -> list[bytes | None]:
        """Read ranges of files without a cache; see `storage.read_payloads`."""
        ...

    def list_files(
        self,
        url: str,
        *,
        suffixes: tuple[str, ...],
        ignored: str | tuple[str, ...],
        options: StorageOptions,
    ) -> list[str]:
        """List the URLs that a directory or a glob stands for; see `storage.listing`."""
        ...

    def upload(
        self, url: str, source: bytes | Path, options: StorageOptions, *, etag: str = ""
    ) -> None:
        """Store bytes, or a local file, at the end; see `storage.write.upload`."""
        ...

    def remove(self, url: str, options: StorageOptions) -> None:
        """Remove an object; a missing one is not an error."""
        ...


def remote_storage(url: str) -> RemoteStorage:
    """The storage that reads and writes a URL of another machine."""
    try:
        storage: RemoteStorage = find("storage", "remote")
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{shown(url)!r} is no file of this machine, and shardwise.extensions.remote, which "
            "reads others, is not there",
            extra="all",
        ) from error
    return storage


def open_file(url: str | os.PathLike[str], *, options: StorageOptions | None = None) -> File:
    """Open a file for reading by byte ranges.

    A local file is opened at once. For a remote one no request is sent yet: its errors are raised
    by the first read, or by `open`.
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
