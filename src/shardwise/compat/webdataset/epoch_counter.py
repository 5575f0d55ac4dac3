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
# The cells: the epoch behind the last one and a mark of who began that (0 for the main process,
# else the workers' common seed); how often the epoch was set, and to which; whether the pipeline
# has warned.
_WORD, _NUM_SETS, _SET_TO, _HAS_WARNED = range(4)


class SharedIntegers:
    """Integers of 64 bits that worker processes share; any other copy has its own."""

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
        return SharedIntegers, (list(self._cells),)


def _shared(cells: Any) -> SharedIntegers:
    shared = SharedIntegers.__new__(SharedIntegers)
    shared._cells = cells
    return shared


class EpochCounter:
    """Counts the epochs that have begun, over generations of workers."""

    def __init__(self, next_epoch: int = 0) -> None:
        self._cells = SharedIntegers([next_epoch, 0, next_epoch, 0])
        self._begin_here()

    def _begin_here(self) -> None:
        self._own_mark: tuple[int, int] | None = None
        self._seen_sets = self._cells[_NUM_SETS]
        self._epoch = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_cells": self._cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cells = state["_cells"]
        self._begin_here()

    def copy(self) -> EpochCounter:
        """A counter of its own with the same count."""
        return EpochCounter(self.next_epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next, as far as this process can see."""
        return self._cells[_WORD] & _EPOCH_MASK

    @property
    def was_begun_by_worker(self) -> bool:
        """Whether the last epoch was begun by workers."""
        return bool(self._cells[_WORD] >> _EPOCH_BITS)

    def is_first_warning(self) -> bool:
        """True once, in all processes that share this counter."""
        is_first = not self._cells[_HAS_WARNED]
        self._cells[_HAS_WARNED] = 1
        return is_first

    def set(self, epoch: int) -> None:
        """Have this epoch begin next, also in workers that live already."""
        self._cells[_SET_TO] = epoch
        self._cells[_NUM_SETS] = self._cells[_NUM_SETS] + 1
        self._cells[_WORD] = epoch

    def begin(self) -> int:
        """The epoch that begins now."""
        info = get_worker_info()
        if info is None:
            epoch, mark = self.next_epoch, 0
        else:
            # Workers that were started together have seeds that follow one another.
            mark = mix(info.seed - info.id) >> (_EPOCH_BITS + 1) | 1
            if self._own_mark == (os.getpid(), mark):
                # A worker that lives on from epoch to epoch.
                was_set = self._cells[_NUM_SETS] != self._seen_sets
                epoch = self._cells[_SET_TO] if was_set else self._epoch + 1
            else:
                word = self._cells[_WORD]
                was_begun = word >> _EPOCH_BITS == mark
                epoch = (word & _EPOCH_MASK) - was_begun
            self._own_mark = os.getpid(), mark
        self._seen_sets = self._cells[_NUM_SETS]
        self._epoch = epoch
        self._cells[_WORD] = mark << _EPOCH_BITS | (epoch + 1)
        return epoch
