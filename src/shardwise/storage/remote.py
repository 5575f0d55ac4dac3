"""The seam to remote storage, which reads, writes and lists files of other machines.

It is an extension, `shardwise.extensions.remote`. The core finds it in `shardwise.base.plugins`,
and knows no more of it than this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shardwise.base.errors import MissingExtraError
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, ReadRequest


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
