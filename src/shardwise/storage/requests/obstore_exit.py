"""What obstore's own threads still hold, so that the interpreter does not end under them.

When a call of obstore is over, a thread of its runtime enters Python once more to hand the result
to the event loop, and the loop may have gone on before that thread has left again. CPython ends a
foreign thread that wants the interpreter back while it is being torn down; such an end in the
middle of obstore aborts the whole process. And if the loop is closed when the result of a call
that was cancelled arrives, obstore prints an error. So each call is followed until obstore has
let go of it. Imports the standard library; obstore at the end, where it was used.
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
# A call that is in a cycle of objects (an exception that a user keeps) needs a collection.
_COLLECT_AFTER_S = 0.1


class ObstoreCalls:
    """The calls of obstore that may still be under way. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._calls: weakref.WeakSet[Awaitable[Any]] = weakref.WeakSet()

    async def result(self, call: Awaitable[T]) -> T:
        """The result of a call (an asyncio future), followed until obstore has let go of it."""
        self._calls.add(call)
        try:
            return await call
        except Exception as error:
            # Its type has no name that can be imported; a panic over a setting is no bug of ours.
            if type(error).__name__ == "RustPanic":
                raise OSError("obstore gave up: is one of the settings malformed?") from None
            raise
        finally:
            # Or an error's traceback would keep it alive.
            del call

    async def settle(self, seconds: float) -> bool:
        """Wait until obstore has let go of all calls; False if that takes longer than `seconds`.

        It runs in the event loop, which takes the results of cancelled calls meanwhile.
        """
        if not self._calls:
            return True
        from obstore.store import MemoryStore

        began = time.monotonic()
        is_collected = False
        while True:
            # Its threads let go of Python objects without the lock: they are counted down when
            # obstore is called the next time.
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
