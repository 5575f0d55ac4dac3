"""A memo of the last two epochs: what a sampler derives once an epoch, and can always derive again.

It keeps samplers pure: dropping it changes the speed only. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["EpochMemo"]

T = TypeVar("T")


class EpochMemo(Generic[T]):
    """What was made for the last two epochs; two, because a virtual epoch may reach into a second.

    Safe in threads: at worst two of them make the same value. Pickles empty.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[tuple[int, T], ...] = ()

    def get(self, epoch: int, make: Callable[[int], T]) -> T:
        """Return `make(epoch)`, kept from an earlier call where it is still there."""
        for kept, value in self._entries:
            if kept == epoch:
                return value
        value = make(epoch)
        self._entries = ((epoch, value), *self._entries[:1])
        return value

    def __reduce__(self) -> tuple[type[EpochMemo[T]], tuple[()]]:
        return EpochMemo, ()
