"""Seconds that decoding media spends in "demux" and "convert", for the loader's statistics.

A context variable, so that each thread counts its own, and decoders need no argument for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

__all__ = ["StageSeconds", "spent_in"]


@dataclass(slots=True, eq=False)
class StageSeconds:
    """Counts, while it is entered, what this thread spends in stages of decoding.

    One that is entered inside another has its seconds to itself.

    Attributes:
        seconds: by stage.
        is_paused: nothing is counted now.

    Examples:
        >>> with StageSeconds() as counted:
        ...     with spent_in("demux"):
        ...         pass
        >>> list(counted.seconds)
        ['demux']
    """

    seconds: dict[str, float] = field(default_factory=dict)
    is_paused: bool = False
    _outer: Token[StageSeconds | None] = field(init=False)

    def __enter__(self) -> StageSeconds:
        """Count from now on."""
        self._outer = _COUNTED.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Count no more."""
        _COUNTED.reset(self._outer)


_COUNTED: ContextVar[StageSeconds | None] = ContextVar("shardwise_stage_seconds", default=None)


@contextmanager
def spent_in(stage: str) -> Iterator[None]:
    """Count the seconds of a block, or of a function that it decorates; blocks are not nested."""
    counted = _COUNTED.get()
    if counted is None or counted.is_paused:
        yield
        return
    started = time.perf_counter()
    try:
        yield
    finally:
        passed = time.perf_counter() - started
        counted.seconds[stage] = counted.seconds.get(stage, 0.0) + passed
