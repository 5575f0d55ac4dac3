"""The memory that the decoders of one process share: a thread waits until its pictures fit.

A decoder of 4K video holds 90 to 130 MB of pictures that others are coded from: eight threads held
1.1 GB. Loaders reserve what decoders take, up to a bound, of the memory that they may use for
batches, and lower the bound where even two batches leave less, as long as a pass is under way.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

_MAX_BYTES = 512 << 20
# 7 pictures were measured at 4K, where the levels of H.264 and HEVC allow 5 and 6 to refer to; VP9
# and AV1 have 8. Smaller pictures may be more, of fewer bytes.
_PICTURES = 12
# After a decoder of this size freed memory goes back to the system at once: each of eight threads
# would keep as much. Of smaller ones less is kept, and giving it back costs 2 ms.
_LARGE_BYTES = 64 << 20


@dataclass(slots=True)
class _Pass:
    """A pass of a loader: the most bytes that decoders requested, and the most they may hold."""

    peak: int
    limit: int = 0


class PictureMemory:
    """A bounded sum of bytes that decoders hold, with a first-come, first-served queue.

    Args:
        max_bytes: of all decoders together; a single one is admitted whatever it takes.

    Examples:
        >>> memory = PictureMemory(100)
        >>> with memory.hold(60), memory.hold(40):
        ...     pass
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._waited_for = 0
        # Passes by owner; an entry ends with its owner.
        self._passes: weakref.WeakKeyDictionary[object, _Pass] = weakref.WeakKeyDictionary()
        self._kept = 0  # freed since memory was last given back to the system
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def limit(self, owner: object, num_bytes: int) -> None:
        """Hold no more than this until `owner` lifts its limit; the lowest limit counts.

        Args:
            owner: whose limit it is: a later one replaces it, and it ends with its owner.
            num_bytes: of all decoders together; a single one is admitted whatever it takes.
        """
        with self._changed:
            asked_for = self._held + self._waited_for
            self._passes.setdefault(owner, _Pass(asked_for)).limit = num_bytes
            self._changed.notify_all()

    def lift(self, owner: object) -> None:
        """Remove the limit of an owner, if it has one."""
        with self._changed:
            self._passes.pop(owner, None)
            self._changed.notify_all()

    def peak(self, owner: object) -> int:
        """The most bytes held or waited for at one time since an owner's first limit.

        Up to the bound; 0 without a limit. Decoders of other passes count: the memory is shared.
        """
        with self._changed:
            found = self._passes.get(owner)
            return 0 if found is None else min(found.peak, self.max_bytes)

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Hold some bytes, from the moment that they fit to the end of the block.

        A block must not hold a second time inside: it could wait for itself.
        """
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            self._waited_for += num_bytes
            for each in self._passes.values():
                each.peak = max(each.peak, self._held + self._waited_for)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is turn and self._fits(num_bytes))
                self._held += num_bytes
            finally:
                # Also where an interrupt ends the wait. The next one may fit, too.
                self._waited_for -= num_bytes
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            self._release(num_bytes)

    def _release(self, num_bytes: int) -> None:
        # Freed pictures stay with the thread's part of the heap, where no other thread uses them.
        with self._changed:
            self._kept += num_bytes
            is_much = num_bytes >= _LARGE_BYTES or 2 * self._kept > self.max_bytes
            gives_back = bool(self._waiting) or is_much
            if gives_back:
                self._kept = 0
        try:
            if gives_back and (trim := _trim()) is not None:
                trim(0)
        finally:
            with self._changed:
                self._held -= num_bytes
                self._changed.notify_all()

    def _fits(self, num_bytes: int) -> bool:
        most = min([self.max_bytes, *(each.limit for each in self._passes.values())])
        return not self._held or self._held + num_bytes <= most


def decoder_bytes(height: int, width: int) -> int:
    """About what a decoder of pictures of this size holds, with 8 bits and half the colour."""
    return _PICTURES * height * width * 3 // 2


def picture_memory() -> PictureMemory:
    """The memory of this process; a forked child has its own, empty at first."""
    return _memory_of(os.getpid())


@cache
def _trim() -> Any:
    """The function that gives freed memory back to the system, if the C library has it (glibc)."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@cache
def _memory_of(pid: int) -> PictureMemory:  # noqa: ARG001 - the key of the cache
    return PictureMemory(_MAX_BYTES)
