"""Integers in memory that a dataset shares with the worker processes that read it.

The memory has no name that a killed process could leave behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.heap import Arena
from typing import Any

__all__ = ["SharedIntegers"]


class SharedIntegers:
    """Integers of 64 bits that worker processes share; any other copy has its own.

    Each is one aligned word, so that reading and writing one needs no lock. No other object gets
    the memory later: a process that was forked may still write into it.

    Args:
        values: what they are at first.
        arena: memory to use in place of new, which has the values.

    Raises:
        OverflowError, ValueError: a value does not fit into 64 bits.
    """

    def __init__(self, values: Sequence[int], arena: Arena | None = None) -> None:
        initial = array("q", values)
        self._arena = arena or Arena(initial.itemsize * len(initial))
        self._cells = memoryview(self._arena.buffer).cast("B").cast("q")
        if arena is None:
            self._cells[:] = initial

    def __getitem__(self, place: Any) -> Any:
        return self._cells[place].tolist() if isinstance(place, slice) else self._cells[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._cells[place] = array("q", value) if isinstance(place, slice) else value

    def __len__(self) -> int:
        return len(self._cells)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            # A worker process is being started: the memory itself goes along.
            return SharedIntegers, ([], self._arena)
        return SharedIntegers, (self._cells.tolist(),)
