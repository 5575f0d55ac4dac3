"""Deadlines of decoders, as the trainer keeps them: which worker is overdue, and what it had.

The trainer looks at the workers' records while it waits for a batch, at the time when the first of
them may be overdue, and not more often: before that, a stuck decoder delays nothing.
"""

from __future__ import annotations

import time

from shardwise.engine.processes.worker_status import Decoding, WorkerStatus

_NS = 1_000_000_000
# A worker that is stopped between receiving a task and writing so takes the task with it. It is
# known to be lost when all workers have been idle for this long.
_IDLE_NS = 1 * _NS


class DecodeDeadlines:
    """Finds the workers whose decoders or functions take longer than `timeout` s for a sample."""

    def __init__(self, status: WorkerStatus, timeout: float) -> None:
        self._status = status
        self._timeout_ns = int(timeout * _NS)
        self._next_ns = 0
        self._overdue: dict[int, list[Decoding | None]] = {}
        self._has_stopped = False
        self._idle_since: int | None = None

    def next_s(self) -> float:
        """Seconds until the next look."""
        return max(0.0, (self._next_ns - time.monotonic_ns()) / _NS)

    def overdue(self) -> list[int]:
        """The workers that have to be stopped now."""
        now = time.monotonic_ns()
        if now < self._next_ns:
            return []
        began = [now]
        self._overdue = {}
        for worker in range(self._status.num_workers):
            records = self._status.decoding(worker)
            times = [record.began_ns for record in records if record is not None]
            if any(now - each >= self._timeout_ns for each in times):
                self._overdue[worker] = records
            else:
                began += times
        self._next_ns = min(began) + self._timeout_ns
        if self._has_stopped:
            self._next_ns = min(self._next_ns, now + _IDLE_NS)
        return list(self._overdue)

    def stopped(self, worker: int) -> dict[tuple[int, int], Decoding | None]:
        """The chunks that a worker had when it was stopped, with what was stuck in them.

        A decoder that went on just then is not to blame: its record is another one now.
        """
        before, after = self._overdue[worker], self._status.decoding(worker)
        oldest = time.monotonic_ns() - self._timeout_ns
        chunks = {}
        tasks = self._status.tasks_of(worker)
        for task, one, other in zip(tasks, before, after, strict=True):
            if task is not None:
                is_stuck = one is not None and one == other and one.began_ns <= oldest
                chunks[task] = one if is_stuck else None
        self._status.clear(worker)
        self._has_stopped = True
        self._idle_since = None
        return chunks

    def has_lost(self) -> bool:
        """Whether all workers have been idle for a second since one was stopped.

        Asked only while answers are missing, none has arrived, and all tasks were sent.
        """
        if not self._has_stopped or not self._status.all_idle:
            self._idle_since = None
            return False
        now = time.monotonic_ns()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < _IDLE_NS:
            return False
        self._idle_since = None
        return True
