"""Where an IterableDataset is to read from, in memory that it shares with its worker processes.

Workers that live on from epoch to epoch keep their copy of the dataset; what the main process
sets afterwards reaches them here. The memory has no name that a killed process could leave behind.
Imports torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Place", "SharedPlace"]

_EPOCH, _START, _TIMES_SET, _TIMES_SET_AT_END, _WARNED, _HAS_WORKERS, _NUM_CELLS = range(7)


class Place(NamedTuple):
    """Which epoch to read, from which position of its global order.

    `times_set` counts how often the main process has chosen a place: it tells one choice of an
    epoch from the next choice of the same.
    """

    epoch: int = 0
    start: int = 0
    times_set: int = 0


class SharedPlace:
    """A `Place`, and marks that workers leave for the main process and their successors.

    Each mark is one aligned word with one meaning, so that no lock is needed. Worker processes of
    torch.multiprocessing share the memory; any other copy or pickle has memory of its own.
    """

    def __init__(self) -> None:
        self._cells = _shared(torch.zeros(_NUM_CELLS, dtype=torch.int64))
        self._cells[_TIMES_SET_AT_END] = -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cells = _shared(state["_cells"])

    def read(self) -> Place:
        """The place that the main process has set last."""
        epoch, start, times_set = self._cells[: _TIMES_SET + 1].tolist()
        return Place(epoch, start, times_set)

    def write(self, place: Place) -> None:
        """Set the place that workers go to when they begin anew."""
        self._cells[: _TIMES_SET + 1] = torch.tensor(place)

    def mark_workers(self) -> None:
        """Note that worker processes read this dataset."""
        self._cells[_HAS_WORKERS] = 1

    def has_workers(self) -> bool:
        """Whether worker processes ever read this dataset."""
        return bool(self._cells[_HAS_WORKERS])

    def mark_end(self, place: Place) -> None:
        """Note that this place was read to the end of its epoch."""
        self._cells[_TIMES_SET_AT_END] = place.times_set

    def first_repeat(self, place: Place) -> bool:
        """Whether this place was read to the end before; True once only."""
        repeats = int(self._cells[_TIMES_SET_AT_END]) == place.times_set
        first = repeats and not self._cells[_WARNED]
        if first:
            self._cells[_WARNED] = 1
        return first


def _shared(cells: torch.Tensor) -> torch.Tensor:
    """Move cells into shared memory, unless they are there already."""
    return cells.share_memory_()  # type: ignore[no-untyped-call, no-any-return]
