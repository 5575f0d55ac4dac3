"""One retrying client a store, process and environment, shared by all files of that store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from shardwise.storage.options import StorageOptions
from shardwise.storage.requests.event_loop import Runtime
from shardwise.storage.requests.retry import RetryingClient
from shardwise.storage.stores.connect import StoreLocation, open_client
from shardwise.storage.stores.credential_discovery import environment_digest


def shared_client(
    location: StoreLocation, options: StorageOptions, process: Runtime
) -> RetryingClient:
    """The client of a store. Called in the event loop's thread."""

    def make() -> RetryingClient:
        slots = process.get(
            ("slots", options.max_requests), lambda: asyncio.Semaphore(options.max_requests)
        )
        return RetryingClient(open_client(location, options), options, slots)

    of_client = replace(options, cache=None, prefetch_bytes=0)
    # A token that is exported after a first refusal makes another client.
    return process.get(("client", location.root, of_client, environment_digest()), make)
