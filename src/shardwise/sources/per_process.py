"""Values that are opened at first use: by each process for itself, or once for all copies.

File positions, connections and locks don't survive a fork, and none of them pickles.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that is made once in each process, at its first use there.

    A forked child makes its own. The parent's value stays referenced in the child: to close what
    the parent still uses would break it there. A pickled copy is empty.

    Examples:
        >>> handle: PerProcess[list[int]] = PerProcess()
        >>> handle.get(list) is handle.get(list)
        True
    """

    def __init__(self) -> None:
        # Keyed by process id: a lock that another thread held at the fork is never free in a child.
        self._slots: dict[int, _Slot[T]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process; any thread may ask, and the first one makes it.

        Args:
            make: called without arguments; if it raises, the next call tries again.
        """
        pid = os.getpid()
        slot = self._slots.get(pid) or self._slots.setdefault(pid, _Slot())
        if not slot.is_made:
            with slot.lock:
                if not slot.is_made:
                    slot.value = make()
                    slot.is_made = True
        return slot.value


class _Slot(Generic[T]):
    __slots__ = ("is_made", "lock", "value")

    value: T

    def __init__(self) -> None:
        self.is_made = False
        self.lock = threading.Lock()


class MadeOnce(Generic[T]):
    """A value that is made at its first use and then travels, to forked children and in pickles.

    Examples:
        >>> names: MadeOnce[list[str]] = MadeOnce()
        >>> names.get(list) is names.get(list)
        True
    """

    def __init__(self) -> None:
        self.value: T | None = None
        self._lock: PerProcess[threading.Lock] = PerProcess()

    def get(self, make: Callable[[], T]) -> T:
        """The value; any thread may ask, and the first one makes it, which must not be None."""
        if self.value is None:
            with self._lock.get(threading.Lock):
                if self.value is None:
                    self.value = make()
        return self.value
