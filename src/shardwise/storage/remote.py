"""A remote file, read by byte ranges: whatever store it is in.

Keeps I6: a range comes whole and of one version, or an error names the URL and the cause. Nothing
is held but names: connections belong to the process and are found at each read, so a file pickles,
and a forked child is told what to do. Imports this package; obstore and fsspec at the first read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from shardwise.errors import DataError, StaleIndexError
from shardwise.shown import shown
from shardwise.storage.options import StorageOptions
from shardwise.storage.prefetch.readahead import Readable, ReadAhead
from shardwise.storage.protocol import File, FileStat
from shardwise.storage.requests.counts import IO_COUNTS
from shardwise.storage.requests.event_loop import Runtime, runtime
from shardwise.storage.requests.ranges import Span, Wanted, join_spans, spans_of
from shardwise.storage.requests.received import Piece, copy_pieces
from shardwise.storage.requests.retry import Reply, Requests
from shardwise.storage.stores.connect import Place, open_client, place_of
from shardwise.storage.stores.credential_discovery import environment_digest
from shardwise.storage.stores.getbatch import Range

__all__ = ["RemoteFile", "read_remote", "requests_to"]

T = TypeVar("T")

_FIRST_GAP = 128 << 10
# Replies up to this length are handed on whole, longer ones as they come.
_LONGEST_WHOLE = 8 << 20
# Fewer ranges are as well off by themselves.
_LEAST_MANY = 4
_SMALL_GAP = 4 << 10


def requests_to(place: Place, options: StorageOptions, process: Runtime) -> Requests:
    """The requests to a store: one set a process, options and environment. In the loop's thread."""

    def make() -> Requests:
        slots = process.get(
            ("slots", options.max_requests), lambda: asyncio.Semaphore(options.max_requests)
        )
        return Requests(open_client(place, options), options, slots)

    bare = replace(options, cache=None, prefetch_bytes=0)
    # A token that is exported after a first refusal makes another client.
    return process.get(("requests", place.root, bare, environment_digest()), make)


class RemoteFile:
    """A file in a store, read at any offset by any thread.

    It may be made before the file exists: nothing is asked until the first read. See `File` for
    what its methods raise.

    Args:
        url: with a scheme that is supported.
        options: how it is reached.

    Attributes:
        next_one: gives the file that is likely to be read after this one, if any.

    Raises:
        StorageError: the scheme is not supported.
        MissingExtraError: the package that it needs is not installed.
    """

    __slots__ = ("_is_known", "_options", "_pinned", "_place", "_requests", "next_one", "url")

    is_remote = True

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url
        self._options = options
        self._place = place_of(url)
        self._pinned: FileStat | None = None
        self._is_known = False
        self._requests: tuple[Runtime, Requests] | None = None
        self.next_one: Callable[[], File | None] = _nothing

    def __repr__(self) -> str:
        return f"RemoteFile({shown(self.url)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self._options, self._pinned, self._is_known)

    @property
    def gap_bytes(self) -> int:
        """What comes in the time of an empty request, as measured so far."""
        return _FIRST_GAP if self._requests is None else self._requests[1].pace.gap_bytes

    def open(self) -> None:
        """Ask for the file's length, to know that it can be read."""
        self.stat()

    def stat(self) -> FileStat:
        """What the store has under the name now. Pins the file where nothing else did."""
        found = self._runtime().run(self._stat())
        if self._pinned is None:
            self._pinned = found
        return found

    def pin(self, stat: FileStat) -> None:
        """Allow this version only; see `File.pin`."""
        self._is_known = True
        if stat.etag:
            self._pinned = stat

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`."""
        whole = bytearray(max(0, length))
        self.read_spans([offset], [length], memoryview(whole), 0)
        return bytes(whole)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a writable contiguous buffer with the bytes at `offset`."""
        view = memoryview(buffer).cast("B")
        self.read_spans([offset], [len(view)], view, 0)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Fill a buffer with several ranges; all requests for them are in flight at once."""
        spans = spans_of(offsets, ends, begin)
        if spans:
            copy_pieces(self._runtime().run(self._read(spans)), buffer)

    def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys of this file's store that begin with a prefix; see `Client.names`."""

        async def work() -> list[str]:
            return await self._store().names(self.url, prefix, delimiter=delimiter)

        return self._runtime().run(work())

    def close(self) -> None:
        """Let go of what was read ahead. Connections stay: they are the process's."""
        known, self._requests = self._requests, None
        if known is not None and known[0].pid == os.getpid():
            known[0].post(self._forget)

    def _runtime(self) -> Runtime:
        return runtime(obstore=bool(self._place.family))

    async def _stat(self) -> FileStat:
        found = await self._store().head(self.url, self._place.key, is_known=self._is_known)
        self._is_known = True
        return found

    def _store(self) -> Requests:
        """The requests to this file's store: one set a process. In the loop's thread."""
        process = self._runtime()
        known = self._requests
        if known is not None and known[0] is process:
            return known[1]
        found = requests_to(self._place, self._options, process)
        self._requests = (process, found)
        return found

    async def _read(self, spans: list[Span]) -> list[Piece]:
        return await self._finish(*await self._begin(spans))

    async def _begin(self, spans: list[Span]) -> tuple[list[Piece], list[Wanted]]:
        """What is read ahead, and the parts that are to be fetched beside."""
        requests = self._store()
        ahead = self._ahead()
        pinned = self._pinned
        pieces: list[Piece] = []
        if ahead is not None and pinned is not None:
            known = [span for span in spans if span.stop <= pinned.num_bytes]
            if known:
                beyond = [span for span in spans if span.stop > pinned.num_bytes]
                pieces, rest = await ahead.read(self._readable(pinned), known)
                spans = rest + beyond
        pace = requests.pace
        # Where many ranges are one request, only headers between fields are read along.
        gap_bytes = _SMALL_GAP if requests.has_many else pace.gap_bytes
        parts = join_spans(spans, gap_bytes=gap_bytes, part_bytes=pace.part_bytes)
        if parts:
            IO_COUNTS.add(waits=1)
        return pieces, parts

    async def _finish(self, pieces: list[Piece], parts: list[Wanted]) -> list[Piece]:
        """Fetch what is left, each part by a request."""
        for brought in await together(self._bring(wanted) for wanted in parts):
            pieces += brought
        return pieces

    def _name(self, version: FileStat) -> str:
        """What tells a version of this file from all others."""
        return f"{self.url}\n{version.etag}\n{version.num_bytes}"

    def _readable(self, version: FileStat) -> Readable:
        return Readable(self._name(version), version.num_bytes, self._stream, self._next_readable)

    def _next_readable(self) -> Readable | None:
        found = self.next_one()
        if not isinstance(found, RemoteFile) or found._pinned is None:
            return None
        return found._readable(found._pinned)

    def _forget(self) -> None:
        ahead, pinned = self._ahead(), self._pinned
        if ahead is not None and pinned is not None:
            ahead.forget(self._name(pinned))

    def _ahead(self) -> ReadAhead | None:
        options = self._options
        if not options.prefetch_bytes:
            return None
        key = ("ahead", options.prefetch_bytes, options.max_requests)
        return self._runtime().get(
            key, lambda: ReadAhead(options.prefetch_bytes, options.max_requests)
        )

    async def _bring(self, wanted: Wanted) -> list[Piece]:
        reply = await self._get(wanted.start, wanted.stop)
        return _cut(wanted, reply.data)

    def _range(self, wanted: Wanted) -> Range | None:
        """A part as a range of `Requests.get_many`, if it is within the size that is pinned."""
        pinned = self._pinned
        if pinned is None or wanted.stop > pinned.num_bytes:
            return None
        return Range(self._place.key, wanted.start, wanted.stop)

    async def _get(self, start: int, stop: int) -> Reply:
        """Bytes of the version that is pinned, all of them."""
        async with self._explained(start, stop):
            reply = await self._store().get(
                self.url, self._place.key, start, stop, self._etag, is_known=self._is_known
            )
        self._is_known = True
        self._check(reply.stat)
        if len(reply.data) < stop - start:
            raise self._ended(start, stop, reply.stat.num_bytes)
        return reply

    async def _stream(self, start: int, stop: int, take: Callable[[Reply], None]) -> None:
        """The same, handed on as they come where they are many."""
        if stop - start <= _LONGEST_WHOLE:
            take(await self._get(start, stop))
            return

        def check(reply: Reply) -> None:
            self._check(reply.stat)
            take(reply)

        requests, key = self._store(), self._place.key
        async with self._explained(start, stop):
            at = await requests.stream(self.url, key, start, stop, self._etag, take=check)
        if at < stop:
            raise self._ended(start, stop, at)

    @property
    def _etag(self) -> str:
        return "" if self._pinned is None else self._pinned.etag

    @asynccontextmanager
    async def _explained(self, start: int, stop: int) -> AsyncIterator[None]:
        """Say where the file ends, if that is before some range begins."""
        try:
            yield
        except DataError as error:
            if type(error) is not DataError:
                raise
            self._check(found := await self._stat())
            raise self._ended(start, stop, found.num_bytes) from None

    def _check(self, found: FileStat) -> None:
        """Hold a reply against the version that is pinned, or pin its version."""
        pinned = self._pinned
        if pinned is None:
            self._pinned = found
            return
        if pinned.etag and found.etag:
            is_same = pinned.etag == found.etag
        else:
            is_same = pinned.num_bytes == found.num_bytes
            if is_same and not pinned.etag and not found.etag and pinned.mtime_ns:
                is_same = found.mtime_ns in (pinned.mtime_ns, 0)
        if not is_same:
            raise StaleIndexError(
                "the file was replaced while it was in use: it was "
                f"{_described(pinned)}, it is {_described(found)}; index it anew, and begin the "
                "epoch anew",
                url=self.url,
            )

    def _ended(self, start: int, stop: int, num_bytes: int) -> DataError:
        if stop <= num_bytes:
            return DataError(
                f"the server refuses bytes {start} to {stop} of a file that it says has "
                f"{num_bytes} bytes (HTTP 416)",
                url=self.url,
                offset=start,
            )
        return DataError(
            f"asked for {stop - start} bytes, there are {max(0, num_bytes - start)}: the file "
            f"ended at byte {num_bytes} of {stop}: truncated?",
            url=self.url,
            offset=start,
        )


def read_remote(
    wanted: Sequence[tuple[RemoteFile, list[int], list[int], int]],
) -> list[Piece]:
    """Do `read_spans` of several files, with the requests for all of them in flight at once.

    Returns:
        What was read, to be copied into the buffer.

    Raises:
        DataError, StorageError: as `File` says; the other reads are given up.
    """
    works = [
        (file, spans)
        for file, offsets, ends, begin in wanted
        if (spans := spans_of(offsets, ends, begin))
    ]
    if not works:
        return []
    processes = {file._runtime() for file, _ in works}

    async def read_all() -> list[Piece]:
        files = [file for file, _ in works]
        if not files[0]._store().has_many:
            # No file's requests wait for what another one reads ahead.
            every = await together(file._read(spans) for file, spans in works)
            return [piece for pieces in every for piece in pieces]
        begun = await together(file._begin(spans) for file, spans in works)
        begun = await _at_once(files, begun)
        found = await together(file._finish(*each) for file, each in zip(files, begun, strict=True))
        return [piece for pieces in found for piece in pieces]

    # One, unless a fork came between fsspec and obstore.
    return processes.pop().run(read_all())


Begun = tuple[list[Piece], list[Wanted]]


async def _at_once(files: list[RemoteFile], begun: list[Begun]) -> list[Begun]:
    """Fetch the parts of one store by one request, where the store can do that."""
    requests = files[0]._store()
    asked = [
        (number, wanted, each)
        for number, (file, (_, parts)) in enumerate(zip(files, begun, strict=True))
        if file._store() is requests
        for wanted in parts
        if (each := file._range(wanted)) is not None
    ]
    if len(asked) < _LEAST_MANY:
        return begun
    found = await requests.get_many([each for *_, each in asked])
    left = [(pieces, list(parts)) for pieces, parts in begun]
    for (number, wanted, _), data in zip(asked, found, strict=True):
        if data is not None:
            pieces, parts = left[number]
            pieces += _cut(wanted, data)
            parts.remove(wanted)
    # Such a reply does not tell versions.
    if key := requests.due_for_a_look({each.key for *_, each in asked}):
        file = next(file for file in files if file._place.key == key)
        file._check(await file._stat())
    return left


def _cut(wanted: Wanted, data: memoryview) -> list[Piece]:
    return [
        Piece(begin, data[start - wanted.start : stop - wanted.start])
        for start, stop, begin in wanted.spans
    ]


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of some work at once; the first that fails ends the others before it is raised."""
    every = list(works)
    if len(every) < 2:
        return [await work for work in every]
    tasks = [asyncio.ensure_future(work) for work in every]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _nothing() -> None:
    """What is known of the file that will be read next."""


def _rebuild(
    url: str, options: StorageOptions, pinned: FileStat | None, is_known: bool
) -> RemoteFile:
    file = RemoteFile(url, options)
    file._pinned, file._is_known = pinned, is_known
    return file


def _described(stat: FileStat) -> str:
    return f"{stat.num_bytes} bytes with the ETag {stat.etag or 'none'}"
