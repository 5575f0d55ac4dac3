"""Blocking calls to a foreign library: a bounded number at a time, each with its own connection.

Most libraries are not safe for two threads on one connection, so each call has a connection to
itself, which the next call reuses. A call that timed out keeps its thread until the library
returns, if ever; these threads are bounded as well. They are daemons: asyncio's own are joined at
the interpreter's exit, so that one that hangs would hang the program. Used in the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from shardwise.storage.client import AttemptError

S = TypeVar("S")
T = TypeVar("T")

# Below the 10 connections that OpenSSH accepts at a time before their login.
_MAX_CALLS = 8
_STUCK_PER_CALL = 8


class BlockingPool(Generic[S]):
    """Calls to one server of the kind `name`; a call's thread makes and closes connections."""

    def __init__(
        self,
        name: str,
        make: Callable[[], S],
        close: Callable[[S], None],
        max_calls: int = _MAX_CALLS,
    ) -> None:
        self._name = name
        self._make = make
        self._close = close
        self._free: list[S] = []
        # Connections are never part of a cycle that the collector frees: it calls the destructors
        # of a connection, its files and their buffers in any order.
        weakref.finalize(self, self._free.clear).atexit = False
        self._turns = asyncio.Semaphore(max_calls)
        self._max_stuck = _STUCK_PER_CALL * max_calls
        self._num_stuck = 0

    async def call(self, work: Callable[[S], T], *, timeout_s: float) -> T:
        """The result of `work(connection)`, in a thread; an error drops the connection.

        Raises:
            TimeoutError: it has not returned in time.
            AttemptError: too many calls have not returned at all.
        """
        async with self._turns:
            if self._num_stuck >= self._max_stuck:
                raise AttemptError(
                    f"{self._num_stuck} calls to {self._name} have not returned: the server, or "
                    "fsspec's plug-in for it, does not answer",
                    "refused",
                )
            # Emptied by who takes it: the frames of an error, which refer to these, hold none.
            free = [self._free.pop()] if self._free else []
            unbroken: list[S] = []

            def call() -> T:
                connection = free.pop() if free else self._make()
                try:
                    result = work(connection)
                except BaseException:
                    self._close(connection)
                    raise
                unbroken.append(connection)
                return result

            def returned() -> None:
                # Also where no caller waits any more: the connection can be used again.
                self._num_stuck -= 1
                while unbroken:
                    self._free.append(unbroken.pop())

            self._num_stuck += 1
            async with asyncio.timeout(timeout_s):
                return await in_thread(call, finally_=returned)


async def in_thread(work: Callable[[], T], *, finally_: Callable[[], None] | None = None) -> T:
    """The result or the exception of `work()`, called in its own thread.

    `finally_` is called in the loop when `work` has returned, even if this was cancelled before.
    An exception and its frames are freed by the collector: `work` closes what it opened.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if finally_ is not None:
            finally_()
        # Cancelled meanwhile, or the loop has ended.
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=call, name="shardwise-blocking", daemon=True).start()
    return await future
