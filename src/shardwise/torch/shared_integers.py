"""Integers in memory that a dataset shares with the worker processes that read it.

The memory has no name that a killed process could leave behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

__all__ = ["SharedIntegers"]


class SharedIntegers:
    """Integers of 64 bits that worker processes share; any other copy has its own.

    Each is one aligned word, so that reading and writing one needs no lock.

    Args:
        values: what they are at first.
        cells: memory to use in place of new.
    """

    def __init__(self, values: Sequence[int], cells: Any = None) -> None:
        self._cells: Any = RawArray("q", values) if cells is None else cells

    def __getitem__(self, place: Any) -> Any:
        return self._cells[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._cells[place] = value

    def __len__(self) -> int:
        return len(self._cells)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            # A worker process is being started: the memory itself goes along.
            return SharedIntegers, ([], self._cells)
        return SharedIntegers, (list(self._cells),)
