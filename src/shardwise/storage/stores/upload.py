"""Whole objects into stores: nothing is visible under the name until all of it is there.

Keeps I8: large objects go up in parts, which the store puts together at the end; a killed program
leaves at most parts without a name, for which buckets have a rule ("abort incomplete multipart
uploads"). Imports `shardwise.errors` and this package.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardwise.storage.options import StorageOptions
from shardwise.storage.requests.event_loop import runtime
from shardwise.storage.stores.connect import location_of
from shardwise.storage.stores.shared_client import shared_client

__all__ = ["upload"]

# A store puts the parts of a large object together before it answers.
_LEAST_ATTEMPT_S = 60.0
_LEAST_REQUEST_S = 300.0


def upload(url: str, source: bytes | Path, *, options: StorageOptions | None = None) -> None:
    """Put bytes, or a local file, under a remote URL; what was there is replaced at the end.

    Raises:
        StorageError: the store does not take it, or can't be written to.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    options = options or StorageOptions()
    place = location_of(url)
    patient = replace(
        options,
        cache=None,
        attempt_timeout_s=max(options.attempt_timeout_s, _LEAST_ATTEMPT_S),
        request_timeout_s=max(options.request_timeout_s, _LEAST_REQUEST_S),
    )

    async def put() -> None:
        await shared_client(place, patient, process).put(url, place.key, source)

    process = runtime(obstore=bool(place.family))
    process.run(put())
