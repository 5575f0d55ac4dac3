"""An object of a store, bound to one version: whole replies of that version, or errors.

Keeps I6: a reply of another version, or one that ends before the range does, is an error with the
object's URL. Except for `process` and `pin`, used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from shardwise.base.errors import DataError
from shardwise.extensions.remote.requests.event_loop import Runtime, runtime
from shardwise.extensions.remote.requests.retry import RetryingClient
from shardwise.extensions.remote.stores.connect import StoreLocation, location_of, open_client
from shardwise.extensions.remote.stores.credential_discovery import environment_digest
from shardwise.storage.client import Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat
from shardwise.storage.versions import ends_early, require_same

# Prefetch requests up to this length are one attempt each; longer ones are streamed.
_MAX_UNSTREAMED_BYTES = 8 << 20


class PinnedObject:
    """An object of a store. Its version is the pinned one, or that of the first reply."""

    __slots__ = ("_location", "_options", "connected", "is_known", "key", "stat", "url")

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url
        self._options = options
        self._location = location_of(url)
        self.key = self._location.key
        self.stat: FileStat | None = None
        self.is_known = False
        self.connected: tuple[Runtime, RetryingClient] | None = None

    @property
    def process(self) -> Runtime:
        """The event loop of this process."""
        return runtime(obstore=self._location.uses_obstore)

    def client(self) -> RetryingClient:
        """The client of the object's store, which the process shares."""
        process = self.process
        if self.connected is None or self.connected[0] is not process:
            self.connected = process, _shared_client(self._location, self._options, process)
        return self.connected[1]

    def pin(self, stat: FileStat) -> None:
        """Allow this version only, if it has an ETag."""
        self.is_known = True
        if stat.etag:
            self.stat = stat

    async def current(self) -> FileStat:
        """The version that the store has now."""
        stat = await self.client().head(self.url, self.key, is_known=self.is_known)
        self.is_known = True
        return stat

    async def get(self, start: int, stop: int, *, may_end: bool = False) -> Reply:
        """Bytes of the version that is pinned: all of them, unless the file `may_end` before."""
        try:
            reply = await self.client().get(
                self.url, self.key, start, stop, self._etag, is_known=self.is_known
            )
        except DataError as error:
            # An empty file has no first byte: stores answer with HTTP 416.
            is_empty = may_end and type(error) is DataError
            if not is_empty or (current := await self.current()).num_bytes:
                raise await self._explain_error(error, start, stop) from None
            reply = Reply(memoryview(b""), current, 0.0)
        self.is_known = True
        self.check(reply.stat)
        if len(reply.data) < stop - start and not may_end:
            raise _range_error(start, stop, reply.stat.num_bytes, self.url)
        return reply

    async def stream(self, start: int, stop: int, take: Callable[[Reply], None]) -> None:
        """The same, passed to `take` as the bytes arrive where the range is long."""
        if stop - start <= _MAX_UNSTREAMED_BYTES:
            take(await self.get(start, stop, may_end=self.stat is None))
            return

        def check(reply: Reply) -> None:
            self.check(reply.stat)
            take(reply)

        client, key = self.client(), self.key
        try:
            at = await client.stream(self.url, key, start, stop, self._etag, take=check)
        except DataError as error:
            raise await self._explain_error(error, start, stop) from None
        if at < stop:
            raise _range_error(start, stop, at, self.url)

    @property
    def _etag(self) -> str:
        return "" if self.stat is None else self.stat.etag

    async def _explain_error(self, error: DataError, start: int, stop: int) -> DataError:
        """The error, or one with the file's length if the file ends before a requested range."""
        if type(error) is not DataError:
            return error
        current = await self.current()
        self.check(current)
        return _range_error(start, stop, current.num_bytes, self.url)

    def check(self, current: FileStat) -> None:
        """Compare a reply's version with the pinned one, or pin it."""
        if self.stat is None:
            self.stat = current
        elif current != self.stat:
            require_same(self.stat, current, self.url)


def _shared_client(
    location: StoreLocation, options: StorageOptions, process: Runtime
) -> RetryingClient:

    def make() -> RetryingClient:
        slots = process.get(
            ("slots", options.max_requests), lambda: asyncio.Semaphore(options.max_requests)
        )
        return RetryingClient(open_client(location, options), options, slots)

    of_client = replace(options, cache=None, prefetch_bytes=0)
    # A token that is exported after a first refusal makes another client.
    return process.get(("client", location.root, of_client, environment_digest()), make)


def _range_error(start: int, stop: int, num_bytes: int, url: str) -> DataError:
    """The error for bytes [start, stop) that a store did not send, of a file of `num_bytes`."""
    if stop <= num_bytes:
        return DataError(
            f"the server refuses bytes {start} to {stop} of a file that it says has "
            f"{num_bytes} bytes (HTTP 416)",
            url=url,
            offset=start,
        )
    return ends_early(start, stop - start, num_bytes, url)
