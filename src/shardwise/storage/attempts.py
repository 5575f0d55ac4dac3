"""Requests that end: attempts with a time limit, pauses between them, a second one for a late one.

Keeps I6: what comes back is a whole reply of the version asked for, or one clear error within the
request's budget. Runs in the event loop's thread. Imports this package only.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from shardwise.storage.counts import IO_COUNTS
from shardwise.storage.failures import AttemptError, explained
from shardwise.storage.options import StorageOptions
from shardwise.storage.pace import Pace
from shardwise.storage.protocol import FileStat

__all__ = ["Client", "Reply", "Requests"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
# A late request gets a second one, then others, each after twice the time; so many beside the first
# may be under way.
_MOST_HEDGES = 3
_LONGEST_LATE_S = 1.0
# So late is no fluctuation of the store: the second one does not depend on how many there were.
_VERY_LATE_S = 0.4


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

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        """Bytes [start, stop) of an object: all of them, or fewer where it ends before.

        With an `etag`, of that version only.
        """
        ...

    async def head(self, key: str) -> FileStat:
        """What lies under a key."""
        ...

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys that begin with a prefix; with a delimiter, those of one directory only.

        Directories end in a slash.
        """
        ...


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
        self._slots = slots
        # Not the user's generator, which may be seeded, and all ranks alike.
        self._random = random.Random()  # noqa: S311 - spreads retries, nothing secret

    async def get(self, url: str, key: str, start: int, stop: int, etag: str) -> Reply:
        """Bytes of an object; see `Client.get`.

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
        return await self._insist(once, url, verb="read", late_s=late_s)

    async def head(self, url: str, key: str) -> FileStat:
        """What lies under a key now; raises as `get` does."""
        late_s = self.pace.late_s(0) if self._options.hedge else None
        return await self._insist(lambda: self.client.head(key), url, verb="look at", late_s=late_s)

    async def names(self, url: str, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys under a prefix; raises as `get` does."""
        return await self._insist(
            lambda: self.client.names(prefix, delimiter=delimiter), url, verb="list", late_s=None
        )

    async def _insist(
        self, once: Callable[[], Awaitable[T]], url: str, *, verb: str, late_s: float | None
    ) -> T:
        options = self._options
        async with self._slots:
            # Waiting for a slot is nobody's fault: time begins now.
            began = time.monotonic()
            attempt = 0
            while True:
                attempt += 1
                left = options.request_timeout_s - (time.monotonic() - began)
                try:
                    async with asyncio.timeout(left):
                        return await self._hedged(once, late_s)
                except AttemptError as error:
                    failed = error
                except TimeoutError:
                    failed = AttemptError("no answer in time", "passing")
                took = time.monotonic() - began
                left = options.request_timeout_s - took
                pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
                pause *= self._random.uniform(0.5, 1.5)
                if failed.kind != "passing":
                    raise explained(failed, url, verb=verb) from None
                if attempt >= options.max_attempts or left <= pause:
                    tries = (
                        f" ({attempt} attempts in {took:.1f} s; the bounds are "
                        f"max_attempts={options.max_attempts} and "
                        f"request_timeout_s={options.request_timeout_s:g})"
                    )
                    raise explained(failed, url, verb=verb, tries=tries) from None
                IO_COUNTS.add(retries=1)
                await asyncio.sleep(pause)

    async def _hedged(self, once: Callable[[], Awaitable[T]], late_s: float | None) -> T:
        """One attempt, and more of the same while it is late: the first to succeed counts.

        A failure counts only when none is left that may succeed.
        """
        running = {self._start(once)}
        try:
            while True:
                # One that failed is none that may still come.
                may_hedge = late_s is not None and len(running) <= _MOST_HEDGES
                done, running = await asyncio.wait(
                    running,
                    timeout=late_s if may_hedge else None,
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
                if not done and late_s is not None:
                    if self.pace.may_hedge() or late_s > _VERY_LATE_S:
                        IO_COUNTS.add(hedges=1)
                        running.add(self._start(once))
                    late_s = max(late_s, min(2 * late_s, _LONGEST_LATE_S))
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)

    def _start(self, once: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        IO_COUNTS.add(requests=1)
        return asyncio.create_task(self._limited(once))

    async def _limited(self, once: Callable[[], Awaitable[T]]) -> T:
        # The client itself ends an attempt that gets no byte for attempt_timeout_s; this is for
        # replies that trickle, and for clients that can't.
        try:
            async with asyncio.timeout(self._options.request_timeout_s):
                return await once()
        except TimeoutError:
            raise AttemptError("no answer in time", "passing") from None
