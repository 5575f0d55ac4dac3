"""Whole files, local or remote: they appear with all of their bytes, or not at all.

Keeps I8.
"""

from __future__ import annotations

from pathlib import Path

from shardwise.base.errors import StorageError
from shardwise.storage.atomic import atomic_write
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions
from shardwise.storage.remote import remote_storage


def write_whole(url: str, data: bytes, *, options: StorageOptions | None = None) -> None:
    """Write a file under a path or URL; directories of this machine that are missing are made.

    Raises:
        StorageError: it can't be written.
    """
    if not is_local(url):
        upload(url, data, options=options)
        return
    path = Path(local_path(url))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise StorageError(f"{str(path)!r} can't be written: {error.strerror or error}") from error


def upload(
    url: str, source: bytes | Path, *, options: StorageOptions | None = None, etag: str = ""
) -> None:
    """Store bytes, or a local file, under a remote URL; the object before is replaced at the end.

    With an `etag` only that version is replaced, in stores that can compare.

    Raises:
        StorageError: the store does not take it, or can't be written to.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    remote_storage(url).upload(url, source, options or StorageOptions(), etag=etag)


def remove(url: str, *, options: StorageOptions | None = None) -> None:
    """Remove the object under a remote URL; a missing one is not an error.

    Raises:
        StorageError: the store refuses.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    remote_storage(url).remove(url, options or StorageOptions())
