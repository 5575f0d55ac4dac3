"""Requests that end: retried with growing pauses, hedged when late, bounded in time.

Keeps I6: a request ends with a whole reply of the requested version, or with one clear error
within `request_timeout_s`. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple, TypeVar

from shardwise.base.counters import IO_COUNTS
from shardwise.base.shown import shown
from shardwise.extensions.remote.requests.failures import library_error
from shardwise.extensions.remote.requests.hedge import (
    VERY_LATE_S,
    LatencyTracker,
    StallTimer,
    hedged,
)
from shardwise.extensions.remote.requests.outage import Outage
from shardwise.storage.client import AttemptError, Client, ObjectRange, Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 10.0
# GetBatch replies have no versions: after every 8 of them, request one object's version.
_VERSION_CHECK_EVERY = 8
# Time for which a known object may be missing while a store moves it between servers.
_MOVING_S = 60.0
# A host that has never answered may be a typing error, which should not take minutes.
_UNKNOWN_HOST_S = 30.0
# After two broken streams, the rest of a range is read by short requests.
_MAX_BROKEN_STREAMS = 2


class _Purpose(NamedTuple):
    """The description of a request in errors, and whether its object was seen before."""

    url: str
    verb: str
    is_known: bool = False


class RetryingClient:
    """Requests to one store, each retried until it succeeds, fails for good or runs out of time."""

    def __init__(self, client: Client, options: StorageOptions, slots: asyncio.Semaphore) -> None:
        self.client = client
        self.latency = LatencyTracker()
        self._options = options
        self._outage = Outage()
        # Whether the store has ever answered this process, even with an error.
        self._has_answered = False
        self._slots = slots
        self._num_batches = 0
        # The number of the GetBatch after which a key's version was last requested.
        self._checked_at: dict[str, int] = {}
        # Not the user's generator: ranks that seed theirs alike would retry at the same moment.
        self._random = random.Random()  # noqa: S311 - spreads retries, nothing secret

    async def get(
        self, url: str, key: str, start: int, stop: int, etag: str, *, is_known: bool = False
    ) -> Reply:
        """Bytes of an object; see `Client.get`.

        With `is_known`, the object was seen before: the store exists, and so did the object.

        Raises:
            MissingShardError: it is not there.
            StaleIndexError: it is another version.
            DataError: it ends before `start`.
            StorageError: all attempts failed, or another one would not help.
        """

        async def once() -> Reply:
            began = time.monotonic()
            self.latency.num_in_flight += 1
            try:
                reply = await self.client.get(key, start, stop, etag)
            except asyncio.CancelledError:
                # The other one of a hedged request was faster; this one's bytes were sent, too.
                lost = self.latency.received(stop - start, time.monotonic() - began)
                IO_COUNTS.add(bytes=lost)
                raise
            finally:
                self.latency.num_in_flight -= 1
            self.latency.add(stop - start, reply.head_s, time.monotonic() - began)
            IO_COUNTS.add(bytes=len(reply.data))
            return reply

        late_s = self.latency.late_s(stop - start) if self._options.hedge else None
        return await self._retry(once, _Purpose(url, "read", is_known), late_s=late_s)

    def due_for_version_check(self, keys: Collection[str]) -> str:
        """After every eighth GetBatch, the key whose version was checked longest ago; else ""."""
        self._num_batches += 1
        if self._num_batches % _VERSION_CHECK_EVERY:
            return ""
        key = min(keys, key=lambda each: self._checked_at.get(each, 0))
        self._checked_at[key] = self._num_batches
        return key

    async def get_many(self, ranges: Sequence[ObjectRange]) -> list[memoryview | None]:
        """Ranges within their objects, by one attempt; None for each that the reply lacks."""
        IO_COUNTS.add(requests=1)
        async with self._slots:
            try:
                payloads = await self.client.get_many(ranges)
            except AttemptError:
                IO_COUNTS.add(retries=1)
                return [None] * len(ranges)
        IO_COUNTS.add(bytes=sum(len(data) for data in payloads if data is not None))
        return payloads

    async def stream(
        self,
        url: str,
        key: str,
        start: int,
        stop: int,
        etag: str,
        *,
        take: Callable[[Reply], None],
    ) -> int:
        """A long range, passed to `take` as its bytes arrive; by one request, if nothing fails.

        A stream that breaks off or stalls is abandoned: the next part is read by `get`, the rest
        by another stream. Raises as `get` does; the pieces before are right.
        Returns the end of the bytes read, before `stop` where the object ends there.
        """
        at, num_broken = start, 0
        while at < stop:
            if num_broken < _MAX_BROKEN_STREAMS:
                at = await self._stream_once(key, at, stop, etag, take)
            if at < stop:
                num_broken += 1
                end = min(stop, at + self.latency.max_request_bytes)
                reply = await self.get(url, key, at, end, etag, is_known=True)
                take(reply)
                at += len(reply.data)
                if at < end:
                    break
        return at

    async def _stream_once(
        self, key: str, at: int, stop: int, etag: str, take: Callable[[Reply], None]
    ) -> int:
        """One streamed request; the end of the bytes that arrived before it broke or stalled."""
        piece_bytes, stall_s = self.latency.piece_bytes, None
        if self._options.hedge:
            stall_s = max(VERY_LATE_S, 2 * self.latency.late_s(piece_bytes))
        async with self._slots:
            IO_COUNTS.add(requests=1)
            since = time.monotonic()
            pieces = aclosing(self.client.stream(key, at, stop, etag, piece_bytes))
            try:
                async with asyncio.timeout(None) as limit, pieces as replies:
                    with StallTimer(limit, stall_s, self.latency) as timer:
                        async for reply in replies:
                            now, num_bytes = time.monotonic(), len(reply.data)
                            self.latency.add(num_bytes, reply.head_s, now - since)
                            # As if each piece were a separate request.
                            since = now - reply.head_s
                            IO_COUNTS.add(bytes=num_bytes)
                            take(reply)
                            at += num_bytes
                            timer.num_pieces += 1
            except TimeoutError:
                IO_COUNTS.add(hedges=1)
            except AttemptError:
                # Transient, perhaps: if it persists, the next `get` raises it.
                IO_COUNTS.add(retries=1)
        return at

    async def head(self, url: str, key: str, *, is_known: bool = False) -> FileStat:
        """The version under a key now; raises as `get` does."""
        late_s = self.latency.late_s(0) if self._options.hedge else None
        purpose = _Purpose(url, "look at", is_known)
        return await self._retry(lambda: self.client.head(key), purpose, late_s=late_s)

    async def names(self, url: str, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys under a prefix; raises as `get` does."""
        return await self._retry(
            lambda: self.client.names(prefix, delimiter=delimiter), _Purpose(url, "list")
        )

    async def put(self, url: str, key: str, source: bytes | Path) -> None:
        """Store an object whole; the one before is replaced at the end. Raises StorageError."""

        async def once() -> None:
            try:
                await self.client.put(key, source)
            except AttemptError as error:
                if error.kind != "missing":
                    raise
                # A missing bucket: the object need not exist.
                raise AttemptError(error.cause, "refused") from None

        await self._retry(once, _Purpose(url, "write"))

    async def replace(self, url: str, key: str, source: bytes | Path, etag: str) -> None:
        """Store an object in place of that version only. Raises StorageError."""
        await self._retry(lambda: self.client.replace(key, source, etag), _Purpose(url, "write"))

    async def remove(self, url: str, key: str) -> None:
        """Remove an object. Raises MissingShardError, StorageError."""
        await self._retry(lambda: self.client.remove(key), _Purpose(url, "write"))

    async def _retry(
        self, once: Callable[[], Awaitable[T]], purpose: _Purpose, *, late_s: float | None = None
    ) -> T:
        """Attempts, until one succeeds, fails for good, or the request's time is over."""
        outage, attempt, is_out, is_back = self._outage, 0, False, False
        async with self._slots:
            # Waiting for a slot does not count: the request's time starts here.
            began = time.monotonic()
            try:
                while True:
                    attempt += 1
                    end = began + self._bound_s(purpose)
                    try:
                        # The client ends an attempt that gets no byte for attempt_timeout_s; this
                        # is for replies that trickle, and for clients that can't.
                        async with asyncio.timeout(end - time.monotonic()):
                            reply = await hedged(once, late_s, self.latency)
                    except AttemptError as error:
                        failed = error
                        self._has_answered |= error.is_answer
                    except TimeoutError:
                        failed = AttemptError("no answer in time", "passing")
                    else:
                        self._has_answered = is_back = True
                        return reply
                    pause_s = self._pause_s(failed, purpose, attempt, began)
                    if not is_out:
                        is_out = True
                        outage.begin(began, self._bound_s(purpose))
                    outage.failed(shown(purpose.url), failed.cause)
                    await asyncio.sleep(pause_s)
                    IO_COUNTS.add(retries=1)
            finally:
                if is_out:
                    outage.end(is_back=is_back)

    def _bound_s(self, purpose: _Purpose) -> float:
        """Seconds that a request may take in all."""
        patience_s = self._options.request_timeout_s
        is_known = self._has_answered or purpose.is_known
        return patience_s if is_known else min(patience_s, _UNKNOWN_HOST_S)

    def _pause_s(
        self, failed: AttemptError, purpose: _Purpose, attempt: int, began: float
    ) -> float:
        """Seconds until the next attempt; raises the library's error if none is left."""
        most, patience_s = self._options.max_attempts, self._options.request_timeout_s
        bound_s = self._bound_s(purpose)
        is_moving = failed.kind == "missing" and purpose.is_known and self.client.moves_objects
        if is_moving:
            bound_s = min(bound_s, _MOVING_S)
        elif failed.kind != "passing":
            raise library_error(failed, purpose.url, verb=purpose.verb)
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * float(2 ** min(attempt - 1, 10)))
        pause_s *= self._random.uniform(0.5, 1.0)
        took_s = time.monotonic() - began
        if most is not None and attempt >= most:
            bound = f"the bound is max_attempts={most}"
        elif took_s + pause_s < bound_s:
            return pause_s
        elif bound_s < patience_s and not is_moving:
            bound = f"a host that has never answered gets {bound_s:g} s: is its name right?"
        else:
            bound = f"the bound is request_timeout_s={patience_s:g}"
        tries = f" ({attempt} attempts in {took_s:.1f} s; {bound})"
        raise library_error(failed, purpose.url, verb=purpose.verb, tries=tries)
