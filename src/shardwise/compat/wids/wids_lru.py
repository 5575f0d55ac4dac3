"""wids' `LRUCache`: a dict of bounded size that forgets what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any


class LRUCache:
    """The newest `capacity` entries, not thread-safe; keys that are not there read as None."""

    def __init__(
        self, capacity: int, release_handler: Callable[[Any, Any], object] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: at least one entry")
        self.capacity = capacity
        self.cache: OrderedDict[Any, Any] = OrderedDict()
        self.release_handler = release_handler

    def __getitem__(self, key: Any) -> Any:
        if key not in self.cache:
            return None
        self.cache.move_to_end(key)
        return self.cache[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cache[key] = value
        self.cache.move_to_end(key)
        while len(self.cache) > self.capacity:
            del self[next(iter(self.cache))]

    def __delitem__(self, key: Any) -> None:
        if key in self.cache:
            value = self.cache.pop(key)
            if self.release_handler is not None:
                self.release_handler(key, value)

    def __len__(self) -> int:
        return len(self.cache)

    def __contains__(self, key: Any) -> bool:
        return key in self.cache

    # The oldest first.

    def items(self) -> ItemsView[Any, Any]:
        return self.cache.items()

    def keys(self) -> KeysView[Any]:
        return self.cache.keys()

    def values(self) -> ValuesView[Any]:
        return self.cache.values()

    def clear(self) -> None:
        for key in list(self.cache):
            del self[key]
