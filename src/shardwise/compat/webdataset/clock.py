"""Which epoch is next, in memory that a dataset shares with its workers.

Workers of torch's DataLoader are often started anew for every epoch, from a dataset that knows
nothing of the epochs before. So the count lies in anonymous shared memory: workers that were
started together see the same epoch, those of the next generation the next one. No lock is needed,
and there is no name that a killed process could leave behind.
"""

from __future__ import annotations

import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.plan.permute import mix

_EPOCH_BITS = 32
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1


class SharedCells:
    """Whole numbers of 64 bits that worker processes share; any other copy has its own."""

    def __init__(self, values: list[int]) -> None:
        self._cells: Any = RawArray("q", values)

    def __getitem__(self, place: int) -> int:
        return int(self._cells[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._cells[place] = value

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            # A worker process is being started: the memory itself goes along.
            return _shared, (self._cells,)
        return SharedCells, (list(self._cells),)


def _shared(cells: Any) -> SharedCells:
    found = SharedCells.__new__(SharedCells)
    found._cells = cells
    return found


class Clock:
    """Counts the epochs that have begun, over generations of workers.

    One cell holds the last epoch that began (plus one, so that 0 is none) and a mark of who began
    it: 0 for the main process, else the workers' common seed.
    """

    def __init__(self, next_epoch: int = 0) -> None:
        # The word, how often the epoch was set, and to what; whether `is_first_call` was called.
        self._cells = SharedCells([next_epoch, 0, next_epoch, 0])
        self._mine: tuple[int, int] | None = None
        self._seen_sets = 0
        self._epoch = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_cells": self._cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cells = state["_cells"]
        self._mine = None
        self._seen_sets = self._cells[1]
        self._epoch = -1

    def copy(self) -> Clock:
        """A clock of its own that shows the same."""
        return Clock(self.next_epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next, as far as this process can see."""
        return self._cells[0] & _EPOCH_MASK

    @property
    def worker_began(self) -> bool:
        """Whether the last epoch was begun by workers."""
        return bool(self._cells[0] >> _EPOCH_BITS)

    def is_first_call(self) -> bool:
        """True once, in all processes that share this clock."""
        is_first = not self._cells[3]
        self._cells[3] = 1
        return is_first

    def set(self, epoch: int) -> None:
        """Have this epoch begin next, also in workers that live already."""
        self._cells[2] = epoch
        self._cells[1] = self._cells[1] + 1
        self._cells[0] = epoch

    def begin(self) -> int:
        """The epoch that begins now."""
        info = get_worker_info()
        if info is None:
            epoch, mark = self.next_epoch, 0
        else:
            # Workers that were started together have seeds that follow one another.
            mark = mix(info.seed - info.id) >> (_EPOCH_BITS + 1) | 1
            if self._mine == (os.getpid(), mark):
                # A worker that lives on from epoch to epoch.
                was_set = self._cells[1] != self._seen_sets
                epoch = self._cells[2] if was_set else self._epoch + 1
            else:
                word = self._cells[0]
                began = word >> _EPOCH_BITS == mark
                epoch = (word & _EPOCH_MASK) - began
            self._mine = os.getpid(), mark
        self._seen_sets = self._cells[1]
        self._epoch = epoch
        self._cells[0] = mark << _EPOCH_BITS | (epoch + 1)
        return epoch
