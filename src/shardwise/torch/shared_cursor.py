"""The cursor of an IterableDataset, in memory that it shares with its worker processes.

Workers that live on from epoch to epoch keep their copy of the dataset; the epoch that the main
process sets afterwards reaches them here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from multiprocessing.heap import Arena
from typing import Any, NamedTuple

# Workers of a pass that was left may or may not have read ahead to its end, each for itself.
LEFT_EARLY = (
    "the pass from position {0.start} of epoch {0.epoch} on was left before its end, and its "
    "workers can't agree on where the next one begins: call load_state_dict(state) before it to "
    "begin there again, or set_epoch for another epoch"
)

(
    _EPOCH, _START, _TIMES_SET, _TIMES_SET_AT_END, _BEGAN, _FIRST, _TOLD, _HAS_WORKERS, _DONE,
) = range(9)  # fmt: skip
_MAX_WORKERS = 4096


class EpochCursor(NamedTuple):
    """The epoch to read, and the position in its global order to read from.

    `times_set` counts the choices of the main process: it distinguishes one choice of an epoch
    from the next choice of the same.
    """

    epoch: int = 0
    start: int = 0
    times_set: int = 0


@dataclass(slots=True, eq=False)
class WorkerPass:
    """One worker's part of a pass over an epoch.

    Attributes:
        number: the worker's, in [0, num_workers); 0 of 1 without workers.
        num_workers: how many share the pass.
        name: the same number in all workers of a pass, another one in each pass; not 0.
        num_yielded: batches that the worker yielded.
    """

    number: int
    num_workers: int
    name: int
    num_yielded: int

    @classmethod
    def begin(cls, worker: Any, num_passes: int, num_skipped: int) -> WorkerPass:
        """The part of this process in its pass number `num_passes`.

        Args:
            worker: torch's `WorkerInfo` of this worker; None without workers.
            num_passes: the passes that this process started, with this one.
            num_skipped: the worker's batches that it leaves out.
        """
        # torch draws a seed for all workers of a loader's iterator; those that live on keep it.
        seed = 0 if worker is None else worker.seed - worker.id
        name = hash((seed, num_passes)) or 1
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return cls(number, num_workers, name, num_skipped)

    def steps_left(self, num_steps: int) -> range:
        """The worker's steps of `num_steps`, without those yielded."""
        return range(self.number + self.num_yielded * self.num_workers, num_steps, self.num_workers)


class SharedCursor:
    """An `EpochCursor`, and marks that workers leave for the main process and their successors.

    Each mark is one word with one meaning, so that no lock is needed.
    """

    def __init__(self) -> None:
        self._cells = SharedIntegers([0] * (_DONE + _MAX_WORKERS))
        self._cells[_TIMES_SET_AT_END] = -1

    def read(self) -> EpochCursor:
        """The cursor that the main process has set last."""
        return EpochCursor(*self._cells[: _TIMES_SET + 1])

    def write(self, cursor: EpochCursor) -> None:
        """Set the cursor that workers start their next pass at."""
        self._cells[: _TIMES_SET + 1] = cursor
        self._cells[_BEGAN] = cursor.start
        self._cells[_FIRST] = 0

    def mark_workers(self) -> None:
        """Mark that worker processes read this dataset."""
        self._cells[_HAS_WORKERS] = 1

    def has_workers(self) -> bool:
        """Whether worker processes ever read this dataset."""
        return bool(self._cells[_HAS_WORKERS])

    def is_first(self, worker_pass: WorkerPass, cursor: EpochCursor) -> bool:
        """Whether no other pass of workers started at this cursor, or it was set again since."""
        if self._cells[_TIMES_SET] != cursor.times_set:
            return True
        if not self._cells[_FIRST]:
            self._cells[_FIRST] = worker_pass.name
        return bool(self._cells[_FIRST] == worker_pass.name)

    def mark_begun(self, worker_pass: WorkerPass, cursor: EpochCursor) -> None:
        """Mark that a worker starts its part of a pass, and where, unless that was set since."""
        self._cells[_DONE + worker_pass.number] = 0
        if self._cells[_TIMES_SET] == cursor.times_set:
            self._cells[_BEGAN] = cursor.start

    def mark_done(self, worker_pass: WorkerPass, cursor: EpochCursor) -> None:
        """Mark that a worker has made its part; the cursor was read when all of one pass have.

        A worker may be done before another one starts.
        """
        self._cells[_DONE + worker_pass.number] = worker_pass.name
        if set(self._cells[_DONE : _DONE + worker_pass.num_workers]) == {worker_pass.name}:
            self._cells[_TIMES_SET_AT_END] = cursor.times_set

    def was_read(self, cursor: EpochCursor) -> bool:
        """Whether all workers read from this cursor to the end of its epoch."""
        return bool(self._cells[_TIMES_SET_AT_END] == cursor.times_set)

    def beginning(self) -> int:
        """The start of the newest pass, or of the next one."""
        return int(self._cells[_BEGAN])

    def first_notice(self) -> bool:
        """True once."""
        is_first = not self._cells[_TOLD]
        self._cells[_TOLD] = 1
        return is_first


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
