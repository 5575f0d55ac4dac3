"""Upload of whole objects: nothing is visible under the name until all of it is stored.

Keeps I8: large objects are uploaded in parts, which the store joins at the end; a killed program
leaves at most nameless parts, which the bucket's rule for incomplete uploads removes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardwise.storage.options import StorageOptions
from shardwise.storage.requests.event_loop import runtime
from shardwise.storage.stores.connect import location_of
from shardwise.storage.stores.shared_client import shared_client

__all__ = ["upload"]

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
    location = location_of(url)
    patient = replace(
        options,
        cache=None,
        attempt_timeout_s=max(options.attempt_timeout_s, _MIN_ATTEMPT_S),
        request_timeout_s=max(options.request_timeout_s, _MIN_REQUEST_S),
    )

    async def put() -> None:
        await shared_client(location, patient, process).put(url, location.key, source)

    process = runtime(obstore=bool(location.family))
    process.run(put())
