"""Threads that wait for remote storage: what for, and how a wait is ended.

Remote storage registers both when it is imported; where nothing remote was read, nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable

# One line for each store that this process waits for. For messages only: no result depends on it.
OUTAGES: dict[int, str] = {}
# Functions of a thread's identifier: each cancels the request that the thread waits for.
CANCELLERS: list[Callable[[int], None]] = []


def outages() -> list[str]:
    """One line for each store that this process waits for; for messages about a long wait."""
    return list(OUTAGES.values())


def give_up_reads(thread: int) -> None:
    """Cancel the request that a thread (its identifier) waits for: StorageError there."""
    for cancel in CANCELLERS:
        cancel(thread)
