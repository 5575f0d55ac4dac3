"""Upload and removal of whole objects: nothing is visible under the name until all of it is stored.

Keeps I8: an object of up to 512 MiB is one request, of which a killed program leaves nothing. A
larger one goes up in parts, which the store joins at the end; a killed program leaves nameless
parts, which the bucket's rule for incomplete uploads removes.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from shardwise.errors import MissingShardError
from shardwise.storage.options import StorageOptions
from shardwise.storage.requests.event_loop import runtime
from shardwise.storage.stores.connect import location_of
from shardwise.storage.stores.shared_client import shared_client

# A store joins the parts of a large object before it answers.
_MIN_ATTEMPT_S = 60.0
_MIN_REQUEST_S = 300.0


def upload(url: str, source: bytes | Path, *, options: StorageOptions | None = None) -> None:
    """Store bytes, or a local file, under a remote URL; the object before is replaced at the end.

    Raises:
        StorageError: the store does not take it, or can't be written to.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    options = options or StorageOptions()
    location, patient = location_of(url), _patient(options)

    async def put() -> None:
        await shared_client(location, patient, process).put(url, location.key, source)

    process = runtime(obstore=bool(location.family))
    process.run(put())


def remove(url: str, *, options: StorageOptions | None = None) -> None:
    """Remove the object under a remote URL; one that is not there is no error.

    Raises:
        StorageError: the store refuses.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    location, patient = location_of(url), _patient(options or StorageOptions())

    async def delete() -> None:
        await shared_client(location, patient, process).remove(url, location.key)

    process = runtime(obstore=bool(location.family))
    with contextlib.suppress(MissingShardError):
        process.run(delete())


def _patient(options: StorageOptions) -> StorageOptions:
    """The options with time for a store to join the parts of a large object."""
    return replace(
        options,
        cache=None,
        attempt_timeout_s=max(options.attempt_timeout_s, _MIN_ATTEMPT_S),
        request_timeout_s=max(options.request_timeout_s, _MIN_REQUEST_S),
    )
