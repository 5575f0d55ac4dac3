"""Worker status: a table in shared memory of the row chunk that each worker thread loads.

Each thread writes its own row, without a lock. The trainer reads the rows to name the
worker of a late chunk, and to know what a worker had that it stops. It writes one number, the
current run, so that workers pass over the tasks of an abandoned iterator. A thread's task is
`[batch + 1, start row]`; -1 means idle, 0 that the thread has not begun. Beside it lies the record
of what the thread decodes (`decode_progress.py`).
"""

from __future__ import annotations

import os

import numpy as np

from shardwise.engine.processes.decode_progress import RECORD_BYTES, DecodeProgress, Decoding
from shardwise.engine.processes.shared_memory import anonymous_file, mapped

_IDLE, _ABSENT = -1, 0
_ROW = np.dtype([("task", np.int64, 2), ("record", np.uint8, RECORD_BYTES)])


class WorkerStatus:
    """The status of all worker threads; workers inherit its file by the descriptor."""

    def __init__(self, descriptor: int, num_workers: int, num_threads: int) -> None:
        self.descriptor = descriptor
        self.num_workers = num_workers
        rows = np.frombuffer(mapped(descriptor, _num_bytes(num_workers, num_threads)), dtype=_ROW)
        # The last row is the trainer's.
        self._trainer = rows["task"][-1]
        self._threads = rows[:-1].reshape(num_workers, num_threads)
        self._tasks = self._threads["task"]

    @classmethod
    def create(cls, num_workers: int, num_threads: int) -> WorkerStatus:
        """Make the table, with no thread begun."""
        descriptor = anonymous_file(_num_bytes(num_workers, num_threads))
        return cls(descriptor, num_workers, num_threads)

    @property
    def run(self) -> int:
        """The run whose tasks are to be done; -1 for none."""
        return int(self._trainer[0])

    @run.setter
    def run(self, number: int) -> None:
        self._trainer[0] = number

    def begin(self, worker: int, thread: int, batch: int, start: int) -> None:
        """Write that a thread loads a chunk."""
        self._tasks[worker, thread] = (batch + 1, start)

    def end(self, worker: int, thread: int) -> None:
        """Write that a thread is idle."""
        self._tasks[worker, thread] = _IDLE

    def clear(self, worker: int) -> None:
        """Write that a worker's threads have not begun, when it was stopped."""
        self._tasks[worker] = _ABSENT
        self._threads["record"][worker] = 0

    def worker_of(self, batch: int, start: int) -> int | None:
        """The worker that loads a chunk, or None."""
        workers, _ = np.nonzero((self._tasks == (batch + 1, start)).all(axis=2))
        return int(workers[0]) if len(workers) else None

    def tasks_of(self, worker: int) -> list[tuple[int, int] | None]:
        """The (batch, start row) that each thread of a worker loads; None where it loads none."""
        rows = self._tasks[worker].tolist()
        return [(batch - 1, start) if batch > 0 else None for batch, start in rows]

    @property
    def all_idle(self) -> bool:
        """Whether all threads of all workers wait for a task."""
        return bool((self._tasks[..., 0] == _IDLE).all())

    def record(self, worker: int, thread: int) -> memoryview:
        """The memory of a thread's record of what it decodes."""
        memory: memoryview = self._threads["record"][worker, thread].data
        return memory

    def decoding(self, worker: int) -> list[Decoding | None]:
        """What each thread of a worker decodes."""
        threads = range(self._threads.shape[1])
        return [DecodeProgress(self.record(worker, thread)).read() for thread in threads]

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def _num_bytes(num_workers: int, num_threads: int) -> int:
    return (num_workers * num_threads + 1) * _ROW.itemsize
