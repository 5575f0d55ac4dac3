"""A cache of the last windows of an order that a sampler has sorted.

It keeps samplers pure: dropping it changes the speed only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["WindowCache"]


class WindowCache:
    """The ids of the windows that were used last, by (epoch, window).

    Args:
        size: how many windows are kept, 2 or more.

    Safe in threads: at worst two of them make the same window. Pickles empty.
    """

    __slots__ = ("_entries", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[tuple[int, int], NDArray[np.int64]] = {}

    def get(
        self, name: tuple[int, int], make: Callable[[], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return the window of this name, from the cache where it is there."""
        entries = self._entries
        value = entries.get(name)
        if value is not None and next(reversed(entries)) == name:
            return value
        if value is None:
            value = make()
        kept = [entry for entry in entries.items() if entry[0] != name][-self._size + 1 :]
        # One assignment: a thread that reads while another writes sees one or the other.
        self._entries = {**dict(kept), name: value}
        return value

    def __reduce__(self) -> tuple[type[WindowCache], tuple[int]]:
        return WindowCache, (self._size,)
