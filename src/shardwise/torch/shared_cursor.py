"""Where an IterableDataset is to read from, in memory that it shares with its worker processes.

Workers that live on from epoch to epoch keep their copy of the dataset; what the main process
sets afterwards reaches them here. The memory has no name that a killed process could leave behind.
Imports torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Place", "Run", "SharedPlace"]

(
    _EPOCH,
    _START,
    _TIMES_SET,
    _TIMES_SET_AT_END,
    _BEGAN,
    _FIRST,
    _WARNED,
    _TOLD,
    _HAS_WORKERS,
    _DONE,
) = range(10)
_MAX_WORKERS = 4096


class Place(NamedTuple):
    """Which epoch to read, from which position of its global order.

    `times_set` counts how often the main process has chosen a place: it tells one choice of an
    epoch from the next choice of the same.
    """

    epoch: int = 0
    start: int = 0
    times_set: int = 0


class Run:
    """One worker's part of a pass over an epoch.

    Attributes:
        number: the worker's, in [0, num_workers); 0 of 1 where there are none.
        num_workers: how many share the pass.
        name: the same number in all workers of a pass, another one in each pass; not 0.
        num_given: batches that the worker yielded.
    """

    def __init__(self, number: int, num_workers: int, name: int, num_given: int) -> None:
        self.number = number
        self.num_workers = num_workers
        self.name = name
        self.num_given = num_given

    def steps_left(self, num_steps: int) -> range:
        """The worker's steps of this many, without those yielded."""
        return range(self.number + self.num_given * self.num_workers, num_steps, self.num_workers)


class SharedPlace:
    """A `Place`, and marks that workers leave for the main process and their successors.

    Each mark is one aligned word with one meaning, so that no lock is needed. Worker processes of
    torch.multiprocessing share the memory; any other copy or pickle has memory of its own.
    """

    def __init__(self) -> None:
        self._cells = _shared(torch.zeros(_DONE + _MAX_WORKERS, dtype=torch.int64))
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
        self._cells[_BEGAN] = place.start
        self._cells[_FIRST] = 0

    def mark_workers(self) -> None:
        """Note that worker processes read this dataset."""
        self._cells[_HAS_WORKERS] = 1

    def has_workers(self) -> bool:
        """Whether worker processes ever read this dataset."""
        return bool(self._cells[_HAS_WORKERS])

    def is_first(self, run: Run, place: Place) -> bool:
        """Whether no other pass of workers began at this place, or it was set anew since."""
        if int(self._cells[_TIMES_SET]) != place.times_set:
            return True
        if not self._cells[_FIRST]:
            self._cells[_FIRST] = run.name
        return int(self._cells[_FIRST]) == run.name

    def mark_begun(self, run: Run, place: Place) -> None:
        """Note that a worker begins its part of a pass, and where, unless that was set since."""
        self._cells[_DONE + run.number] = 0
        if int(self._cells[_TIMES_SET]) == place.times_set:
            self._cells[_BEGAN] = place.start

    def mark_done(self, run: Run, place: Place) -> None:
        """Note that a worker has made all of its part; the place was read when all have.

        All of one pass: a worker may be done before another one begins.
        """
        self._cells[_DONE + run.number] = run.name
        if bool((self._cells[_DONE : _DONE + run.num_workers] == run.name).all()):
            self._cells[_TIMES_SET_AT_END] = place.times_set

    def was_read(self, place: Place) -> bool:
        """Whether this place was read to the end of its epoch, by all workers."""
        return int(self._cells[_TIMES_SET_AT_END]) == place.times_set

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
