"""Requests that end: attempts, growing pauses between them, hedges for late ones.

Keeps I6: a request ends with a whole reply of the version asked for, or with one clear error
within `request_timeout_s`. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from shardwise.shown import shown
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat
from shardwise.storage.requests.counts import IO_COUNTS
from shardwise.storage.requests.failures import AttemptError, explained
from shardwise.storage.requests.latency import Pace
from shardwise.storage.requests.outage import Outage
from shardwise.storage.stores.getbatch import Range

__all__ = ["Client", "Reply", "Requests"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 10.0
# Replies with many ranges tell no versions: a look at one object for so many of them.
_LOOK_EVERY = 8
# How long an object that was there may be on its way between the servers of a store.
_MOVING_S = 60.0
# A late request gets a second one, then others, each after twice the time, unless one failed; so
# many beside the first may be under way.
_MOST_HEDGES = 3
_LONGEST_LATE_S = 1.0
# So late is no fluctuation of the store: the second one does not depend on how many there were.
_VERY_LATE_S = 0.4
# Long requests that may break off before what is left is asked for in parts.
_MOST_BROKEN = 2


class Reply(NamedTuple):
    """Bytes of a file, and of which version.

    Attributes:
        data: any object with the buffer protocol.
        stat: the whole file's.
        head_s: seconds to the first byte.
    """

    data: memoryview
    stat: FileStat
    head_s: float


class Client(Protocol):
    """What speaks to one store. Raises AttemptError; does not try again."""

    moves_objects: bool
    """Whether an object may be missing for seconds because the store moves it between servers."""

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        """Bytes [start, stop) of an object: all of them, or fewer where it ends before.

        With an `etag`, of that version only.
        """
        ...

    def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """The same, handed on as it comes, in pieces of some such length."""
        ...

    async def head(self, key: str) -> FileStat:
        """What lies under a key."""
        ...

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys that begin with a prefix; with a delimiter, those of one directory only.

        Directories end in a slash.
        """
        ...

    async def put(self, key: str, source: bytes | Path) -> None:
        """Store an object whole; what was there is replaced at the end."""
        ...


@runtime_checkable
class ManyRanges(Protocol):
    """A client that reads ranges of many objects by one request, where `has_many` holds."""

    has_many: bool

    async def get_many(self, wanted: Sequence[Range]) -> list[memoryview | None]:
        """The bytes of each range; None for each that did not come."""
        ...


class _Asked(NamedTuple):
    """What a request is for.

    Attributes:
        url: what errors name.
        verb: what is done with it, for errors.
        is_known: whether the object was seen before.
    """

    url: str
    verb: str
    is_known: bool = False


class Requests:
    """Requests to one store, with their attempts.

    Args:
        client: makes single attempts.
        options: time limits, attempts, hedging.
        slots: held by each request in flight.
    """

    def __init__(self, client: Client, options: StorageOptions, slots: asyncio.Semaphore) -> None:
        self.client = client
        self.pace = Pace()
        self._options = options
        self._outage = Outage(options.request_timeout_s)
        self._slots = slots
        self._num_many = 0
        self._looked_at: dict[str, int] = {}
        # Not the user's generator, which may be seeded, and all ranks alike.
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
            reply = await self.client.get(key, start, stop, etag)
            self.pace.add(stop - start, reply.head_s, time.monotonic() - began)
            IO_COUNTS.add(bytes=len(reply.data))
            return reply

        late_s = self.pace.late_s(stop - start) if self._options.hedge else None
        return await self._insist(once, _Asked(url, "read", is_known), late_s=late_s)

    @property
    def has_many(self) -> bool:
        """Whether `get_many` may be one request."""
        return isinstance(self.client, ManyRanges) and self.client.has_many

    def due_for_a_look(self, keys: Collection[str]) -> str:
        """Every eighth time, the key of these whose version was looked at longest ago; else ""."""
        self._num_many += 1
        if self._num_many % _LOOK_EVERY:
            return ""
        key = min(keys, key=lambda each: self._looked_at.get(each, 0))
        self._looked_at[key] = self._num_many
        return key

    async def get_many(self, wanted: Sequence[Range]) -> list[memoryview | None]:
        """Ranges within the sizes of their objects, by one request and one attempt.

        Returns:
            The bytes of each; None for each that did not come, which `get` asks for.
        """
        client = self.client
        assert isinstance(client, ManyRanges)
        IO_COUNTS.add(requests=1)
        async with self._slots:
            try:
                found = await client.get_many(wanted)
            except AttemptError:
                IO_COUNTS.add(retries=1)
                return [None] * len(wanted)
        IO_COUNTS.add(bytes=sum(len(data) for data in found if data is not None))
        return found

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
        """A long range, handed on as it comes: by one request, where all goes well.

        One that breaks off or is late is given up. What is wanted next is then asked for as `get`
        does, and what is behind that by another long one.

        Args:
            url: what errors name.
            key: of the object.
            start: the first byte.
            stop: the byte behind the last one.
            etag: as in `get`.
            take: called with each piece, in order.

        Returns:
            How far it came: `stop`, or less where the object ends before that.

        Raises:
            StorageError, DataError: as `get` says; what was handed on before is right.
        """
        at, num_broken = start, 0
        while at < stop:
            if num_broken < _MOST_BROKEN:
                at = await self._pour(key, at, stop, etag, take)
            if at < stop:
                num_broken += 1
                part = min(stop, at + self.pace.part_bytes)
                take(reply := await self.get(url, key, at, part, etag, is_known=True))
                at += len(reply.data)
                if at < part:
                    break
        return at

    async def _pour(
        self, key: str, at: int, stop: int, etag: str, take: Callable[[Reply], None]
    ) -> int:
        """One long request: how far it came before it broke off, or was given up."""
        piece_bytes, late_s = self.pace.piece_bytes, None
        if self._options.hedge:
            late_s = max(_VERY_LATE_S, 2 * self.pace.late_s(piece_bytes))
        async with self._slots:
            IO_COUNTS.add(requests=1)
            since = time.monotonic()
            pieces = aclosing(self.client.stream(key, at, stop, etag, piece_bytes))
            try:
                async with asyncio.timeout(None) as limit, pieces as replies:
                    with _Watch(limit, late_s) as watch:
                        async for reply in replies:
                            now, num_bytes = time.monotonic(), len(reply.data)
                            self.pace.add(num_bytes, reply.head_s, now - since)
                            # As if each piece had been asked for by itself.
                            since = now - reply.head_s
                            IO_COUNTS.add(bytes=num_bytes)
                            take(reply)
                            at += num_bytes
                            watch.num_came += 1
            except TimeoutError:
                IO_COUNTS.add(hedges=1)
            except AttemptError:
                # If it was no accident, the next request says so.
                IO_COUNTS.add(retries=1)
        return at

    async def head(self, url: str, key: str, *, is_known: bool = False) -> FileStat:
        """What lies under a key now; raises as `get` does."""
        late_s = self.pace.late_s(0) if self._options.hedge else None
        asked = _Asked(url, "look at", is_known)
        return await self._insist(lambda: self.client.head(key), asked, late_s=late_s)

    async def names(self, url: str, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys under a prefix; raises as `get` does."""
        return await self._insist(
            lambda: self.client.names(prefix, delimiter=delimiter), _Asked(url, "list")
        )

    async def put(self, url: str, key: str, source: bytes | Path) -> None:
        """Store an object whole; what was there is replaced at the end. Raises StorageError."""

        async def once() -> None:
            try:
                await self.client.put(key, source)
            except AttemptError as error:
                if error.kind != "missing":
                    raise
                # Not the object is missing, but the bucket for it.
                raise AttemptError(error.cause, "refused") from None

        await self._insist(once, _Asked(url, "write"))

    async def _insist(
        self, once: Callable[[], Awaitable[T]], asked: _Asked, *, late_s: float | None = None
    ) -> T:
        """Attempts, until one succeeds, fails for good, or the request's time is over."""
        outage, attempt, is_out, is_back = self._outage, 0, False, False
        async with self._slots:
            # Waiting for a slot does not count: the request's time begins here.
            began = time.monotonic()
            try:
                while True:
                    attempt += 1
                    end = began + outage.bound_s(is_known=asked.is_known)
                    try:
                        # The client ends an attempt that gets no byte for attempt_timeout_s; this
                        # is for replies that trickle, and for clients that can't.
                        async with asyncio.timeout(end - time.monotonic()):
                            reply = await self._hedged(once, late_s)
                    except AttemptError as error:
                        failed = error
                        outage.has_answered |= error.is_answer
                    except TimeoutError:
                        failed = AttemptError("no answer in time", "passing")
                    else:
                        outage.has_answered = is_back = True
                        return reply
                    pause_s = self._pause_s(failed, asked, attempt, began)
                    if not is_out:
                        is_out = True
                        outage.begin(began)
                    outage.failed(shown(asked.url), failed.cause)
                    await asyncio.sleep(pause_s)
                    IO_COUNTS.add(retries=1)
            finally:
                if is_out:
                    outage.end(is_back=is_back)

    def _pause_s(self, failed: AttemptError, asked: _Asked, attempt: int, began: float) -> float:
        """Seconds until the next attempt; raises what a failure comes to that is not repeated."""
        most, patience_s = self._options.max_attempts, self._options.request_timeout_s
        bound_s = self._outage.bound_s(is_known=asked.is_known)
        is_moving = failed.kind == "missing" and asked.is_known and self.client.moves_objects
        if is_moving:
            bound_s = min(bound_s, _MOVING_S)
        elif failed.kind != "passing":
            raise explained(failed, asked.url, verb=asked.verb)
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * float(2 ** min(attempt - 1, 10)))
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
        raise explained(failed, asked.url, verb=asked.verb, tries=tries)

    async def _hedged(self, once: Callable[[], Awaitable[T]], late_s: float | None) -> T:
        """One attempt, and more of the same while it is late: the first to succeed counts.

        A failure counts only when none is left that may succeed.
        """
        running = {self._start(once)}
        wait_s = late_s
        try:
            while True:
                # One that failed is none that may still come.
                may_hedge = late_s is not None and len(running) <= _MOST_HEDGES
                done, running = await asyncio.wait(
                    running,
                    timeout=wait_s if may_hedge else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                # All of them are asked: asyncio prints an error that nobody asked for.
                ended = [(task, task.exception()) for task in done]
                for task, error in ended:
                    if error is None:
                        return task.result()
                for _, error in ended:
                    is_final = not isinstance(error, AttemptError) or error.kind != "passing"
                    if error is not None and (is_final or not running):
                        raise error
                if done:
                    # What failed is made up for as soon as the first late one was.
                    wait_s = late_s
                elif wait_s is not None:
                    if self.pace.may_hedge() or wait_s > _VERY_LATE_S:
                        IO_COUNTS.add(hedges=1)
                        running.add(self._start(once))
                    wait_s = max(wait_s, min(2 * wait_s, _LONGEST_LATE_S))
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)

    def _start(self, once: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        IO_COUNTS.add(requests=1)
        return asyncio.ensure_future(once())


class _Watch:
    """Ends what waits for the next piece of a reply, if none comes for so long.

    Looks now and then, which costs nothing a piece; and not if the whole loop was held up, since
    what came meanwhile has not been seen.

    Args:
        limit: is made to run out.
        seconds: between two looks; None for no end.

    Attributes:
        num_came: the pieces so far.
    """

    def __init__(self, limit: asyncio.Timeout, seconds: float | None) -> None:
        self.num_came = 0
        self._limit = limit
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._seconds is not None:
            now = self._loop.time()
            self._timer = self._loop.call_at(
                now + self._seconds, self._look, now + 1.5 * self._seconds, self.num_came
            )

    def _look(self, latest: float, num_seen: int) -> None:
        now = self._loop.time()
        if self.num_came == num_seen and now < latest:
            self._limit.reschedule(now)
        else:
            self._arm()
