"""A cache of the last two epochs, for tables that a sampler derives once an epoch.

It keeps samplers pure: dropping it changes the speed only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["EpochCache"]

T = TypeVar("T")


class EpochCache(Generic[T]):
    """Values of the last two epochs; two, because a virtual epoch may reach into a second.

    Safe in threads: at worst two of them make the same value. Pickles empty.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[tuple[int, T], ...] = ()

    def get(self, epoch: int, make: Callable[[int], T]) -> T:
        """Return `make(epoch)`, from the cache where it is there."""
        for cached, value in self._entries:
            if cached == epoch:
                return value
        value = make(epoch)
        self._entries = ((epoch, value), *self._entries[:1])
        return value

    def __reduce__(self) -> tuple[type[EpochCache[T]], tuple[()]]:
        return EpochCache, ()
