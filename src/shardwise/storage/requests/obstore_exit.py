"""obstore's calls in flight, which the interpreter's exit must wait for.

At the end of a call, a thread of obstore's runtime enters Python to pass the result to the event
loop, which may continue before that thread has left again. CPython kills foreign threads that ask
for the interpreter while it is torn down; inside obstore, that aborts the process. And obstore
prints an error if the loop is closed when the result of a cancelled call arrives. So each call is
tracked until obstore has released it.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable
from typing import Any, TypeVar

__all__ = ["ObstoreCalls"]

T = TypeVar("T")

_PAUSE_S = 0.001
# A call in a reference cycle (an exception that a user keeps) needs a collection.
_COLLECT_AFTER_S = 0.1


class ObstoreCalls:
    """The calls of obstore that may still be under way. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._calls: weakref.WeakSet[Awaitable[Any]] = weakref.WeakSet()

    async def result(self, call: Awaitable[T]) -> T:
        """The result of a call (an asyncio future), tracked until obstore has released it."""
        self._calls.add(call)
        try:
            return await call
        except Exception as error:
            # The type can't be imported; a malformed setting makes obstore panic.
            if type(error).__name__ == "RustPanic":
                raise OSError("obstore gave up: is one of the settings malformed?") from None
            raise
        finally:
            # Or an error's traceback would keep it alive.
            del call

    async def settle(self, seconds: float) -> bool:
        """Wait until obstore has released all calls; False if it takes longer than `seconds`.

        The event loop must run meanwhile: it takes the results of cancelled calls.
        """
        if not self._calls:
            return True
        from obstore.store import MemoryStore

        began = time.monotonic()
        is_collected = False
        while True:
            # Its threads release Python objects without the GIL: they are counted down at the next
            # call of obstore.
            MemoryStore()
            if not self._calls:
                return True
            waited_s = time.monotonic() - began
            if waited_s > seconds:
                return False
            if waited_s > _COLLECT_AFTER_S and not is_collected:
                is_collected = True
                gc.collect()
            await asyncio.sleep(_PAUSE_S)
