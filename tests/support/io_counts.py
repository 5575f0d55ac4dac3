"""The storage layer's counters, for what one test does.

`IO_COUNTS` belongs to the process: threads that other tests left behind add to it too. Here only
what the calling thread does counts, and what it starts on the storage layer's event loop, which
runs each coroutine in its starter's context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest import mock

from shardwise.storage import IO_COUNTS

_counts: ContextVar[Counter[str] | None] = ContextVar("_counts", default=None)


@contextmanager
def counted_io() -> Iterator[Counter[str]]:
    """Counts by name, as they grow; those that are 0 are left out."""
    counts: Counter[str] = Counter()
    add = IO_COUNTS.add

    def add_here(**amounts: int) -> None:
        add(**amounts)
        own = _counts.get()
        if own is not None:
            own.update({name: amount for name, amount in amounts.items() if amount})

    token = _counts.set(counts)
    try:
        with mock.patch.object(IO_COUNTS, "add", add_here):
            yield counts
    finally:
        _counts.reset(token)
