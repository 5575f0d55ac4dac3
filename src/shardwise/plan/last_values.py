"""A cache of the values that a pure object derives, for those that were asked for last.

It keeps samplers and plans pure: dropping it changes the speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["LastValues"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class LastValues(Generic[K, T]):
    """The values of the keys that were used last.

    Args:
        size: how many are kept. Two for epochs: a virtual one may reach into a second.

    Safe in threads: at worst two of them make the same value. Pickles empty.
    """

    __slots__ = ("_entries", "_size")

    def __init__(self, size: int = 2) -> None:
        self._size = size
        self._entries: dict[K, T] = {}

    def get(self, key: K, make: Callable[[K], T]) -> T:
        """Return `make(key)`, from the cache where it is there."""
        entries = self._entries
        if key in entries and next(reversed(entries)) == key:
            return entries[key]
        value = entries[key] if key in entries else make(key)
        kept = [entry for entry in entries.items() if entry[0] != key]
        # One assignment: a thread that reads while another writes sees one or the other.
        self._entries = dict([*kept[max(0, len(kept) + 1 - self._size) :], (key, value)])
        return value

    def __reduce__(self) -> tuple[type[LastValues[Any, Any]], tuple[int]]:
        return LastValues, (self._size,)
