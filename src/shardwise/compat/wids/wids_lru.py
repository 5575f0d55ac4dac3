"""wids' `LRUCache`: a dict of bounded size that forgets what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class LRUCache(OrderedDict[Any, Any]):
    """At most `capacity` entries, the oldest first; reading or writing one makes it the newest.

    Not safe in threads by itself. Keys that are not there read as None.
    """

    def __init__(
        self, capacity: int, release_handler: Callable[[Any, Any], object] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: at least one entry")
        super().__init__()
        self.capacity = capacity
        self.release_handler = release_handler

    @property
    def cache(self) -> OrderedDict[Any, Any]:
        """The entries."""
        return self

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            return None
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.capacity:
            del self[next(iter(self))]

    def __delitem__(self, key: Any) -> None:
        if key in self:
            value = super().__getitem__(key)
            super().__delitem__(key)
            if self.release_handler is not None:
                self.release_handler(key, value)

    def clear(self) -> None:
        """Let go of all entries."""
        for key in list(self):
            del self[key]
