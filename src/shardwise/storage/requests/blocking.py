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
