"""Whole files, local or remote: they appear with all of their bytes, or not at all.

Keeps I8: an object of up to 512 MiB is one request, of which a killed program leaves nothing. A
larger one goes up in parts, which the store joins at the end; a killed program leaves nameless
parts, which the bucket's rule for incomplete uploads removes.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.storage.atomic import atomic_write
from shardwise.storage.open import is_local, local_path
from shardwise.storage.options import StorageOptions

if TYPE_CHECKING:
    from shardwise.storage.pinned_object import PinnedObject

# A store joins the parts of a large object before it answers.
_MIN_ATTEMPT_S = 60.0
_MIN_REQUEST_S = 300.0


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


def upload(url: str, source: bytes | Path, *, options: StorageOptions | None = None) -> None:
    """Store bytes, or a local file, under a remote URL; the object before is replaced at the end.

    Raises:
        StorageError: the store does not take it, or can't be written to.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    target = _patient(url, options)

    async def put() -> None:
        await target.client().put(url, target.key, source)

    target.process.run(put())


def remove(url: str, *, options: StorageOptions | None = None) -> None:
    """Remove the object under a remote URL; one that is not there is no error.

    Raises:
        StorageError: the store refuses.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    target = _patient(url, options)

    async def delete() -> None:
        await target.client().remove(url, target.key)

    with contextlib.suppress(MissingShardError):
        target.process.run(delete())


def _patient(url: str, options: StorageOptions | None) -> PinnedObject:
    """The object of a URL, with time for a store to join the parts of a large one."""
    from shardwise.storage.pinned_object import PinnedObject

    options = options or StorageOptions()
    return PinnedObject(
        url,
        replace(
            options,
            attempt_timeout_s=max(options.attempt_timeout_s, _MIN_ATTEMPT_S),
            request_timeout_s=max(options.request_timeout_s, _MIN_REQUEST_S),
        ),
    )
