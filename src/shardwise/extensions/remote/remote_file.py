"""A remote file, read by byte ranges: whatever store it is in.

Keeps I6: a range arrives whole and of one version, or an error names the URL and the cause. A file
holds names only: connections belong to the process and are looked up at each read, so a file
pickles, and a forked child gets an error with the remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from shardwise.base.counters import IO_COUNTS
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.remote.prefetch.planned import PIECE_BYTES, PlannedReads
from shardwise.extensions.remote.requests.event_loop import Runtime, gather_or_cancel, runtime
from shardwise.extensions.remote.requests.retry import RetryingClient
from shardwise.extensions.remote.stores.connect import location_of, open_client
from shardwise.extensions.remote.stores.credential_discovery import environment_digest
from shardwise.storage.byte_ranges import (
    WHOLE,
    ByteRange,
    RangeRequest,
    ReceivedBytes,
    coalesce,
    copy_received,
    received_for,
)
from shardwise.storage.client import ObjectRange, Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat, ReadRequest, RemoteReads
from shardwise.storage.urls import FAMILIES
from shardwise.storage.versions import range_error, require_same

# GetBatch for fewer ranges is not faster than one request per range.
_MIN_BATCH_RANGES = 4
# Only headers between fields are worth reading along: more would be paid for and not used.
_GAP_BYTES = 4 << 10
# Announcements come several at a time: neighbours among them share a request.
_BURST_S = 0.002
# Prefetch requests up to this length are one attempt each; longer ones are streamed.
_MAX_UNSTREAMED_BYTES = 8 << 20


class PinnedObject:
    """An object of a store. Its version is the pinned one, or that of the first reply.

    Attributes:
        key: of the object in its store.
        stat: its version; None before the first reply.
        is_known: whether the object was seen before.
        connected: the process and its client, from the first request on.
    """

    __slots__ = (
        "_is_obstore", "_location", "_options", "connected", "is_known", "key", "stat", "url",
    )  # fmt: skip

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url
        self._options = options
        self._location = location_of(url)
        # Such a client does not survive a fork.
        self._is_obstore = self._location.family in FAMILIES.values()
        self.key = self._location.key
        self.stat: FileStat | None = None
        self.is_known = False
        self.connected: tuple[Runtime, RetryingClient] | None = None

    @property
    def process(self) -> Runtime:
        """The event loop of this process."""
        return runtime(obstore=self._is_obstore)

    def client(self) -> RetryingClient:
        """The client of the object's store, which the process shares."""
        process, options = self.process, self._options
        if self.connected is None or self.connected[0] is not process:
            slots = process.get(
                ("slots", options.max_requests), lambda: asyncio.Semaphore(options.max_requests)
            )
            of_client = replace(options, cache=None, prefetch_bytes=0)
            # A token that is exported after a first refusal makes another client.
            client = process.get(
                ("client", self._location.root, of_client, environment_digest()),
                lambda: RetryingClient(open_client(self._location, options), options, slots),
            )
            self.connected = process, client
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
            raise range_error(start, stop, reply.stat.num_bytes, self.url)
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
            raise range_error(start, stop, at, self.url)

    @property
    def _etag(self) -> str:
        return "" if self.stat is None else self.stat.etag

    async def _explain_error(self, error: DataError, start: int, stop: int) -> DataError:
        """The error, or one with the file's length if the file ends before a requested range."""
        if type(error) is not DataError:
            return error
        current = await self.current()
        self.check(current)
        return range_error(start, stop, current.num_bytes, self.url)

    def check(self, current: FileStat) -> None:
        """Compare a reply's version with the pinned one, or pin it."""
        if self.stat is None:
            self.stat = current
        elif current != self.stat:
            require_same(self.stat, current, self.url)


class RemoteFile(RemoteReads):
    """A file in a store, read at any offset by any thread.

    It may be made before the file exists: nothing is requested until the first read. See `File` for
    what its methods raise.

    Raises:
        StorageError: the scheme is not supported.
        MissingExtraError: the package that it needs is not installed.
    """

    __slots__ = ("_object", "_options", "url")

    is_remote = True

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url
        self._options = options
        self._object = PinnedObject(url, options)

    def __repr__(self) -> str:
        return f"RemoteFile({shown(self.url)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self._options, self._object.stat, self._object.is_known)

    def open(self) -> None:
        self.stat()

    def stat(self, since: int = 0) -> FileStat:  # noqa: ARG002
        current = self._object.process.run(self._current())
        if self._object.stat is None:
            self._object.stat = current
        return current

    def pin(self, stat: FileStat) -> None:
        self._object.pin(stat)

    @staticmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        copy_received(receive(requests), buffer)

    def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys of this file's store that start with a prefix; see `Client.names`."""

        async def list_keys() -> list[str]:
            return await self._object.client().names(self.url, prefix, delimiter=delimiter)

        return self._object.process.run(list_keys())

    def close(self) -> None:
        self._object.connected = None

    def announce(self, owner: Hashable, requests: Sequence[ReadRequest]) -> bool:
        def add() -> None:
            planned = self._get_planned_reads()
            for file, ranges in requests:
                pinned = file._object.stat
                if pinned is None and [*ranges] == [WHOLE]:
                    whole = ByteRange(0, PIECE_BYTES, 0)
                    planned.add(owner, file._whole_name(), file._object, [whole])
                # A batch of a store that takes many ranges is one request.
                elif pinned is not None and not file._object.client().client.has_many:
                    within = [each for each in ranges if each.stop <= pinned.num_bytes]
                    planned.add(owner, file._version_name(pinned), file._object, within)
            self._object.process.loop.call_later(_BURST_S, planned.fetch)

        self._object.process.post(add)
        return True

    def withdraw(self, owner: Hashable) -> None:
        self._object.process.post(lambda: self._get_planned_reads().withdraw(owner))

    async def _read(self, ranges: list[ByteRange]) -> list[ReceivedBytes]:
        return await self._finish(await self._begin(ranges))

    async def _begin(self, ranges: list[ByteRange]) -> _Progress:
        """Take what was announced, and plan the requests for the rest."""
        most, pinned = self._object.client().latency.max_request_bytes, self._object.stat
        received: list[ReceivedBytes] = []
        if pinned is not None and (planned := self._get_planned_reads()).names:
            for name in (self._version_name(pinned), self._whole_name()):
                found, ranges = await planned.read(name, ranges)
                received += found
        requests = coalesce(ranges, gap_bytes=_GAP_BYTES, max_request_bytes=most)
        if requests:
            IO_COUNTS.add(waits=1)
        return _Progress(received, requests)

    async def _finish(self, progress: _Progress) -> list[ReceivedBytes]:
        """Send the requests that are left, all at once."""
        replies = await gather_or_cancel(
            self._object.get(request.start, request.stop) for request in progress.requests
        )
        for request, reply in zip(progress.requests, replies, strict=True):
            progress.received.extend(received_for(request, reply.data))
        return progress.received

    async def _current(self) -> FileStat:
        """The version that is there now, or that of the file which was announced."""
        planned, name = self._get_planned_reads(), self._whole_name()
        if (announced := planned.object_of(name)) is None:
            return await self._object.current()
        await planned.read(name, [ByteRange(0, 1, 0)])
        self._object = announced
        return self._object.stat or await self._object.current()

    def _whole_name(self) -> str:
        # One URL may name files of several stores.
        return f"{self.url}\n{id(self._object.client())}"

    def _version_name(self, version: FileStat) -> str:
        return f"{self.url}\n{version.etag}\n{version.num_bytes}"

    def _get_planned_reads(self) -> PlannedReads:
        bounds = self._options.prefetch_bytes, self._options.max_requests
        return self._object.process.get(("planned", *bounds), lambda: PlannedReads(*bounds))


class _Progress(NamedTuple):
    """A read under way: what prefetched blocks gave, and the requests for the rest."""

    received: list[ReceivedBytes]
    requests: list[RangeRequest]


def receive(requests: Sequence[ReadRequest]) -> list[ReceivedBytes]:
    """Read ranges of several remote files, with all requests in flight at once.

    Raises:
        DataError, StorageError: see `File`; the other requests are cancelled.
    """
    reads: list[tuple[RemoteFile, list[ByteRange]]] = [
        (file, list(ranges)) for file, ranges in requests if ranges
    ]
    if not reads:
        return []
    first = reads[0][0]._object

    async def read_all() -> list[list[ReceivedBytes]]:
        if not first.client().client.has_many:
            # No file's requests wait for another file's prefetched blocks.
            return await gather_or_cancel(file._read(ranges) for file, ranges in reads)
        begun = await gather_or_cancel(file._begin(ranges) for file, ranges in reads)
        reading = [(file, progress) for (file, _), progress in zip(reads, begun, strict=True)]
        await _get_batch(reading)
        return await gather_or_cancel(file._finish(progress) for file, progress in reading)

    # The process is the same for all, unless a fork came between fsspec and obstore.
    return list(chain.from_iterable(first.process.run(read_all())))


async def _get_batch(reading: list[tuple[RemoteFile, _Progress]]) -> None:
    """Send the requests to one store as a single GetBatch; what it lacks stays to be requested."""
    client = reading[0][0]._object.client()
    asked = [
        (file, progress, request)
        for file, progress in reading
        if file._object.client() is client
        for request in progress.requests
        # Ranges past an object's end are never answered.
        if (pinned := file._object.stat) is not None and request.stop <= pinned.num_bytes
    ]
    if len(asked) < _MIN_BATCH_RANGES:
        return
    payloads = await client.get_many(
        [ObjectRange(file._object.key, request.start, request.stop) for file, _, request in asked]
    )
    for (_, progress, request), data in zip(asked, payloads, strict=True):
        if data is not None:
            progress.received.extend(received_for(request, data))
            progress.requests.remove(request)
    # A GetBatch reply has no versions: now and then, request one object's version.
    files = {file._object.key: file for file, *_ in asked}
    if key := client.due_for_version_check(files):
        files[key]._object.check(await files[key]._object.current())


def _rebuild(
    url: str, options: StorageOptions, pinned: FileStat | None, is_known: bool
) -> RemoteFile:
    file = RemoteFile(url, options)
    file._object.stat, file._object.is_known = pinned, is_known
    return file
