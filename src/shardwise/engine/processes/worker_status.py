"""Worker status: a table in shared memory of the row chunk that each worker thread loads.

Each thread writes its own row, without a lock. The trainer reads the rows to name the
worker of a late chunk, and to know what a worker had that it stops. It writes one number, the
current run, so that workers pass over the tasks of an abandoned iterator. A row is
`[batch + 1, start row]`; -1 means idle, 0 that the thread has not begun. Behind the table lies a
record of each thread's decoding (`decode_progress.py`).
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.decode_progress import RECORD_BYTES, DecodeProgress, Decoding
from shardwise.engine.processes.shared_memory import anonymous_file, mapped

_IDLE, _ABSENT = -1, 0


class WorkerStatus:
    """The status of all worker threads.

    Attributes:
        descriptor: the anonymous file, for workers to inherit.
        num_workers: processes.
    """

    def __init__(self, descriptor: int, num_workers: int, num_threads: int) -> None:
        self.descriptor = descriptor
        self.num_workers = num_workers
        self._num_threads = num_threads
        memory = memoryview(mapped(descriptor, _num_bytes(num_workers, num_threads)))
        table_bytes = _table_bytes(num_workers, num_threads)
        rows = np.frombuffer(memory[:table_bytes], dtype=np.int64).reshape(-1, 2)
        self._threads: NDArray[np.int64] = rows[:-1]
        self._trainer: NDArray[np.int64] = rows[-1]
        self._records = memory[table_bytes:]

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
        self._threads[worker * self._num_threads + thread] = (batch + 1, start)

    def end(self, worker: int, thread: int) -> None:
        """Write that a thread is idle."""
        self._threads[worker * self._num_threads + thread] = _IDLE

    def clear(self, worker: int) -> None:
        """Write that a worker's threads have not begun, when it was stopped."""
        first = worker * self._num_threads
        self._threads[first : first + self._num_threads] = _ABSENT
        start = first * RECORD_BYTES
        stop = start + self._num_threads * RECORD_BYTES
        self._records[start:stop] = bytes(stop - start)

    def worker_of(self, batch: int, start: int) -> int | None:
        """The worker that loads a chunk, or None."""
        [at] = np.nonzero((self._threads == (batch + 1, start)).all(axis=1))
        return int(at[0]) // self._num_threads if len(at) else None

    def tasks_of(self, worker: int) -> list[tuple[int, int] | None]:
        """The (batch, start row) that each thread of a worker loads; None where it loads none."""
        first = worker * self._num_threads
        rows = self._threads[first : first + self._num_threads].tolist()
        return [(batch - 1, start) if batch > 0 else None for batch, start in rows]

    @property
    def all_idle(self) -> bool:
        """Whether all threads of all workers wait for a task."""
        return bool((self._threads[:, 0] == _IDLE).all())

    def record(self, worker: int, thread: int) -> memoryview:
        """The memory of a thread's record of what it decodes."""
        start = (worker * self._num_threads + thread) * RECORD_BYTES
        return self._records[start : start + RECORD_BYTES]

    def decoding(self, worker: int) -> list[Decoding | None]:
        """What each thread of a worker decodes."""
        threads = range(self._num_threads)
        return [DecodeProgress(self.record(worker, thread)).read() for thread in threads]

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def _table_bytes(num_workers: int, num_threads: int) -> int:
    return (num_workers * num_threads + 1) * 2 * 8


def _num_bytes(num_workers: int, num_threads: int) -> int:
    return _table_bytes(num_workers, num_threads) + num_workers * num_threads * RECORD_BYTES
