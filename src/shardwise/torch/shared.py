"""Where an IterableDataset is to read from, in memory that it shares with its worker processes.

Workers that live on from epoch to epoch keep their copy of the dataset; what the main process
sets afterwards reaches them here. The memory has no name that a killed process could leave behind.
Imports torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Place", "SharedPlace"]

_EPOCH, _START, _TIMES_SET, _TIMES_SET_AT_END, _BEGAN, _WARNED, _TOLD, _HAS_WORKERS = range(8)


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
        self._cells = _shared(torch.zeros(_HAS_WORKERS + 1, dtype=torch.int64))
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
        self.mark_beginning(place)

    def mark_workers(self) -> None:
        """Note that worker processes read this dataset."""
        self._cells[_HAS_WORKERS] = 1

    def has_workers(self) -> bool:
        """Whether worker processes ever read this dataset."""
        return bool(self._cells[_HAS_WORKERS])

    def mark_end(self, place: Place) -> None:
        """Note that this place was read to the end of its epoch."""
        self._cells[_TIMES_SET_AT_END] = place.times_set

    def was_read(self, place: Place) -> bool:
        """Whether this place was read to the end of its epoch."""
        return int(self._cells[_TIMES_SET_AT_END]) == place.times_set

    def mark_beginning(self, place: Place) -> None:
        """Note where in the epoch a pass begins, unless another place was set since."""
        if int(self._cells[_TIMES_SET]) == place.times_set:
            self._cells[_BEGAN] = place.start

    def beginning(self) -> int:
        """Where the newest pass began, or the next one will."""
        return int(self._cells[_BEGAN])

    def first_repeat(self) -> bool:
        """True once."""
        return self._first(_WARNED)

    def first_notice(self) -> bool:
        """True once."""
        return self._first(_TOLD)

    def _first(self, cell: int) -> bool:
        is_first = not self._cells[cell]
        self._cells[cell] = 1
        return is_first


def _shared(cells: torch.Tensor) -> torch.Tensor:
    """Move cells into shared memory, unless they are there already."""
    return cells.share_memory_()  # type: ignore[no-untyped-call, no-any-return]
