"""Whole objects into stores: nothing is visible under the name until all of it is there.

Keeps I8: large objects go up in parts, which the store puts together at the end; a killed program
leaves at most parts without a name, for which buckets have a rule ("abort incomplete multipart
uploads"). Imports `shardwise.errors` and this package.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from shardwise.errors import StorageError
from shardwise.storage.failures import AttemptError, explained
from shardwise.storage.foreign import FsspecClient
from shardwise.storage.hub import HubListing
from shardwise.storage.objects import ObstoreClient
from shardwise.storage.options import StorageOptions
from shardwise.storage.runtime import runtime
from shardwise.storage.stores import open_client, place_of
from shardwise.storage.web import WebClient

__all__ = ["upload"]

# A store puts the parts of a large object together before it answers.
_LEAST_ATTEMPT_S = 60.0
_LEAST_REQUEST_S = 300.0
_PAUSE_S = 0.2


def upload(url: str, source: bytes | Path, *, options: StorageOptions | None = None) -> None:
    """Put bytes, or a local file, under a remote URL; what was there is replaced at the end.

    Raises:
        StorageError: the store does not take it, or can't be written to.
        MissingExtraError: a package that the scheme needs is not installed.
    """
    options = options or StorageOptions()
    place = place_of(url)
    patient = replace(
        options,
        cache=None,
        attempt_timeout_s=max(options.attempt_timeout_s, _LEAST_ATTEMPT_S),
        request_timeout_s=max(options.request_timeout_s, _LEAST_REQUEST_S),
    )

    async def put() -> None:
        client = open_client(place, patient)
        if isinstance(client, HubListing) or not isinstance(
            client, ObstoreClient | FsspecClient | WebClient
        ):
            raise StorageError(
                f"can't write {url!r}: {place.family}:// URLs can be read only; write to a local "
                "directory and upload it with the hub's own tool"
            )
        for attempt in range(1, options.max_attempts + 1):
            try:
                return await client.put(place.key, source)
            except AttemptError as error:
                failed = error
            if failed.kind == "missing":
                # No file is missing here, but the bucket for it.
                failed = AttemptError(failed.cause, "refused")
            if failed.kind != "passing":
                raise explained(failed, url, verb="write")
            await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise explained(failed, url, verb="write", tries=f" ({options.max_attempts} attempts)")

    runtime(obstore=bool(place.family)).run(put())
