"""Tests that are coroutines, and time that passes only while nothing is left to do."""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualTime:
    """The clock of event loops that go on to their next timer at once instead of waiting for it.

    Attributes:
        now: seconds; tests let a loop be held up by adding to it.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()

    def hold_up(self, seconds: float) -> None:
        """Let time pass in which no loop runs."""
        self.now += seconds

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """As `asyncio.run`, in a loop of this clock."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(main)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Jumping(self))
        loop.time = lambda: self.now  # type: ignore[method-assign]
        return loop


class _Jumping(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout and 0)
        if timeout and not ready:
            self.clock.hold_up(timeout)
        return ready


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run
