"""A cache of the most recently requested values that a pure object derives.

It keeps samplers and plans pure: dropping it changes the speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

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
        # The newest first.
        self._entries: tuple[tuple[K, T], ...] = ()

    def get(self, key: K, make: Callable[[K], T]) -> T:
        """Return `make(key)`, from the cache where it is there."""
        entries = self._entries
        if entries and entries[0][0] == key:
            return entries[0][1]
        found = [entry for entry in entries if entry[0] == key]
        newest = found[0] if found else (key, make(key))
        others = [entry for entry in entries if entry[0] != key]
        # One assignment: a thread that reads while another writes sees one or the other.
        self._entries = (newest, *others[: self._size - 1])
        return newest[1]

    def __reduce__(self) -> tuple[type[LastValues[Any, Any]], tuple[int]]:
        return LastValues, (self._size,)
