"""Blocking calls from the event loop, each in a daemon thread.

asyncio's own threads are joined at the interpreter's exit, so a thread that hangs in a foreign
library would hang the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, finally_: Callable[[], None] | None = None) -> T:
    """The result or the exception of `work()`, called in a thread of its own.

    `finally_` is called in the loop when `work` has returned, even if this was cancelled before.
    """
    future = _started(work, finally_)
    try:
        return await future
    finally:
        # The exception's frames refer to this one and to the thread's. Neither refers to the
        # exception now, so that a connection that broke is freed at once, files first, and not by
        # the collector in any order.
        del future


def _started(work: Callable[[], T], finally_: Callable[[], None] | None) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # Taken out when the call has returned: the frames of its exception refer to `settle`.
    unsettled = [future]

    def settle(result: T | None, error: BaseException | None) -> None:
        if finally_ is not None:
            finally_()
        settled = unsettled.pop()
        # Cancelled meanwhile, or the loop has ended.
        if settled.done():
            return
        if error is not None:
            settled.set_exception(error)
        else:
            settled.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failed)
        del failed

    threading.Thread(target=call, name="shardwise-blocking", daemon=True).start()
    return future
