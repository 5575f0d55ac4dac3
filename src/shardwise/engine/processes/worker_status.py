"""Worker status: a table in shared memory of the row chunk that each worker thread loads.

Each thread writes its own row and nobody waits for anybody. The trainer reads the rows only to name
the worker of a late chunk. It writes one number, the current run, so that workers pass over the
tasks of an abandoned iterator. A row is `[batch + 1, start row]`; 0 means idle.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_memory import anonymous_file, mapped

__all__ = ["WorkerStatus"]


class WorkerStatus:
    """The status of all worker threads.

    Attributes:
        descriptor: the anonymous file, for workers to inherit.
    """

    def __init__(self, descriptor: int, num_workers: int, num_threads: int) -> None:
        self.descriptor = descriptor
        self._num_threads = num_threads
        size = _num_bytes(num_workers, num_threads)
        rows = np.frombuffer(mapped(descriptor, size), dtype=np.int64).reshape(-1, 2)
        self._threads: NDArray[np.int64] = rows[:-1]
        self._trainer: NDArray[np.int64] = rows[-1]

    @classmethod
    def create(cls, num_workers: int, num_threads: int) -> WorkerStatus:
        """Make the table, with all threads idle."""
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
        self._threads[worker * self._num_threads + thread] = 0

    def worker_of(self, batch: int, start: int) -> int | None:
        """The worker that loads a chunk, or None."""
        [at] = np.nonzero((self._threads == (batch + 1, start)).all(axis=1))
        return int(at[0]) // self._num_threads if len(at) else None

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def _num_bytes(num_workers: int, num_threads: int) -> int:
    return (num_workers * num_threads + 1) * 2 * 8
