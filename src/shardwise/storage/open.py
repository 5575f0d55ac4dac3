"""One door to all storage: a URL's scheme says who opens it.

Imports `shardwise.errors` and this package only.
"""

from __future__ import annotations

import os

from shardwise.errors import StorageError
from shardwise.storage.local import LocalFile
from shardwise.storage.urls import scheme_of, strip_file_scheme

__all__ = ["local_path", "open_file"]


def open_file(url: str | os.PathLike[str]) -> LocalFile:
    """Open a file for reading by byte ranges.

    Raises:
        MissingShardError: it is not there.
        StorageError: the scheme is not supported, or the file can't be opened.
    """
    file = LocalFile(local_path(url))
    file.open()
    return file


def local_path(url: str | os.PathLike[str]) -> str:
    """The local path that a URL names: `file:` is stripped, `~` expanded.

    Raises:
        StorageError: the URL is not a local one; the message says what is supported.
    """
    text = os.fspath(url)
    scheme = scheme_of(text)
    if scheme not in ("", "file"):
        raise StorageError(
            f"can't open {text!r}: the scheme {scheme!r} is not supported; supported are local "
            "paths and file:// URLs, so copy the file to a local or mounted disk"
        )
    return os.path.expanduser(strip_file_scheme(text))  # noqa: PTH111 - keeps './'
