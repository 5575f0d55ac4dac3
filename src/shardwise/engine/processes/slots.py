"""Slots: anonymous memory that is mapped once, reused, and never overwritten in use.

Workers write rows or messages into a slot; the trainer's arrays view it. Its last bytes show
whether it is free: in the process of its pool or in the one that got it, the end of the last of
those arrays frees it. A user who keeps every batch simply gets new slots. Whoever registers a
slot's memory with a device sets `before_unmap` to undo that: the address may belong to
another slot later.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_memory import (
    ALIGNMENT,
    anonymous_file,
    map_without_file,
    max_slots,
)

# The values of a slot's last bytes, for its owner and every process that has it mapped.
_FREE, _IN_USE, _ABANDONED = range(3)
_STATE_BYTES = ALIGNMENT
# Processes that may have one slot, each with a byte of its state.
MAX_HOLDERS = _STATE_BYTES


class _Forks:
    """Counts the forks of this process: a child has copies of the arrays that it inherits."""

    count = 0

    @classmethod
    def add(cls) -> None:
        """Count one, in parent and child."""
        cls.count += 1


os.register_at_fork(before=_Forks.add)


class Lease:
    """Stands between a slot's memory and the arrays over it: it dies with the last of them."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


def lend(
    memory: NDArray[np.uint8],
    then: Callable[[], None] | None = None,
    state: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """The bytes of a mapped slot's file: it is free when the last array over them is gone.

    `then` is called after that. A private map is freed in `state`, which is shared.
    """
    lease = Lease(memory[:-_STATE_BYTES])
    state = memory[-_STATE_BYTES:] if state is None else state
    weakref.finalize(lease, _give_back, state, _Forks.count, then).atexit = False
    return np.asarray(lease)


def _give_back(state: NDArray[np.uint8], num_forks: int, then: Callable[[], None] | None) -> None:
    if state[0] == _IN_USE:
        # A slot that a fork has inherited is never written again.
        state[0] = _FREE if num_forks == _Forks.count else _ABANDONED
    if then is not None:
        then()


class Slot:
    """One anonymous file, mapped; a `BatchMemory`.

    Its number names it in its pool, its descriptor is to be sent to other processes, and `memory`
    lacks the state, which is the end of the file.
    """

    def __init__(self, number: int, num_bytes: int) -> None:
        self.number = number
        self.descriptor = anonymous_file(num_bytes + _STATE_BYTES)
        # A loader that is dropped without close() drops its idle slots, and an open file keeps
        # its pages.
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self._close.atexit = False
        self.before_unmap: list[Callable[[], None]] = []
        self._whole = map_without_file(self.descriptor, before_unmap=self.before_unmap)
        self.memory = self._whole[:-_STATE_BYTES]
        self.state = _IN_USE

    @property
    def state(self) -> int:
        """Whether the slot is free, in use, or never to be used again."""
        return max(self._whole[-_STATE_BYTES:].tobytes())

    @state.setter
    def state(self, state: int) -> None:
        self._whole[-_STATE_BYTES] = state

    def lend(self, then: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """Its memory for the user; see `lend`."""
        return lend(self._whole, then)

    def hold(self, holders: Iterable[int]) -> None:
        """Send it to several processes, by number: it is free when each of them has freed it."""
        self._whole[-_STATE_BYTES:][list(holders)] = _IN_USE
        self._whole[-_STATE_BYTES] = _FREE

    def free(self) -> None:
        """Let it be used again: nobody got it."""
        self.state = _FREE

    def abandon(self) -> None:
        """Never use it again: someone who was forgotten may still write into it."""
        self.state = _ABANDONED

    def close(self) -> None:
        """Close the file; the mapping goes when the last array over it does."""
        self._close()


class SlotPool:
    """Slots that are used again and again, by one process and those that it sends them to.

    At most `max_idle` free ones are kept; new ones are larger than requested by `headroom`, a
    share, where sizes differ a little.
    """

    def __init__(self, *, max_idle: int, headroom: float = 0.0) -> None:
        self._max_idle = min(max_idle, max_slots())
        self._headroom = headroom
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._numbers = itertools.count()

    def keep(self, max_idle: int) -> None:
        """Keep at least as many free slots from now on."""
        self._max_idle = max(self._max_idle, min(max_idle, max_slots()))

    def take(self, num_bytes: int) -> Slot:
        """A slot of `num_bytes` or more that nobody uses."""
        with self._lock:
            self._trim()
            free = [slot for slot in self._slots if slot.state == _FREE]
            free.sort(key=lambda slot: slot.memory.nbytes)
            for slot in free:
                if slot.memory.nbytes >= num_bytes:
                    slot.state = _IN_USE
                    return slot
            self._drop(free[:1])  # batches have grown
            slot = Slot(next(self._numbers), num_bytes + int(num_bytes * self._headroom))
            # One of more is used once: a user who keeps all batches must not use up all files.
            if len(self._slots) < max_slots():
                self._slots.append(slot)
            return slot

    def lend(self, slot: Slot) -> NDArray[np.uint8]:
        """The slot's memory for the user: it is free when the last array over it is gone."""
        return slot.lend(self._came_back)

    @property
    def is_scarce(self) -> bool:
        """Whether `max_slots()` are in use: batches that are kept should be copied then."""
        return sum(slot.state == _IN_USE for slot in self._slots) >= max_slots()

    def close(self) -> None:
        """Give the idle slots back to the system, and the others as they come back."""
        with self._lock:
            self._max_idle = 0
            self._trim()

    def _came_back(self) -> None:
        # Arrays die in any thread, also inside the garbage collector while the lock is held: who
        # has it trims.
        if self._lock.acquire(blocking=False):
            try:
                self._trim()
            finally:
                self._lock.release()

    def _trim(self) -> None:
        """Give back to the system the slots that will not be used again."""
        # A batch in progress may still send the file of an abandoned one: it closes with the slot.
        self._slots = [slot for slot in self._slots if slot.state != _ABANDONED]
        free = [slot for slot in self._slots if slot.state == _FREE]
        free.sort(key=lambda slot: slot.memory.nbytes, reverse=True)
        self._drop(free[self._max_idle :])

    def _drop(self, slots: Sequence[Slot]) -> None:
        if slots:
            self._slots = [slot for slot in self._slots if slot not in slots]
        for slot in slots:
            slot.close()
