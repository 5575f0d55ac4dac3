"""Writing whole files, local or remote: they appear with all of their bytes, or not at all."""

from __future__ import annotations

from pathlib import Path

from shardwise.errors import StorageError
from shardwise.storage.atomic import atomic_write
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions
from shardwise.storage.stores.upload import upload


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
