"""Worker status: a table in shared memory of what each worker thread does, and who is overdue.

Each thread writes its own row, without a lock: the row chunk that it loads, and before each decoder
or function of a `map()` that it calls (0.4 us) what that gets. The trainer reads the rows to name
the worker of a late chunk, to find decoders that take longer than `decode_timeout`, and to know
what a worker had that it stops. It looks when the first may be overdue.
It writes one number, the current run, so that workers pass over the tasks of an abandoned iterator.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np

from shardwise.base.errors import DecodeTimeoutError
from shardwise.engine.processes.shared_memory import anonymous_file, map_without_file

# A thread's task is `[batch + 1, start row]`; -1 means idle, 0 that the thread has not started.
_IDLE, _ABSENT = -1, 0
# Start in nanoseconds of the system-wide monotonic clock (0: nothing is decoded), sample, part,
# bytes of the key, bytes of the detail, the key, the detail. Longer ones are cut in messages. 520
# bytes, so that what follows a record is aligned.
_KEY_BYTES, _DETAIL_BYTES = 428, 64
_RECORD = struct.Struct(f"<qqqhh{_KEY_BYTES}s{_DETAIL_BYTES}s")
RECORD_BYTES = _RECORD.size
_ROW = np.dtype([("task", np.int64, 2), ("record", np.uint8, RECORD_BYTES)])


class Decoding(NamedTuple):
    """A record.

    Attributes:
        began_ns: when the decoder or function started, in nanoseconds of the monotonic clock.
        sample: the sample's id; -1 where a decoder has a whole column.
        part: the field's index among the fields; for a `map()`, -1 minus its index.
        key: the sample's key.
        detail: what of it is decoded, such as the frames of a clip; "" where that is all of it.
    """

    began_ns: int
    sample: int
    part: int
    key: str
    detail: str = ""


@dataclass(frozen=True)
class DecodeProgress:
    """The record of one thread; in its worker a `shardwise.sources.samples.DecodeWatch`.

    Decoders that were stopped before, (sample, part) of `stuck`, are not started again.
    """

    memory: memoryview
    _: KW_ONLY
    stuck: frozenset[tuple[int, int]] = frozenset()
    timeout: float = 0.0

    def begin(self, sample: int, key: str, part: int, detail: str = "") -> None:
        """Write that a decoder or function starts."""
        if self.stuck and (sample, part) in self.stuck:
            raise timeout_error(self.timeout, detail)
        name = key.encode("utf-8", "replace")[:_KEY_BYTES]
        more = detail.encode("utf-8", "replace")[:_DETAIL_BYTES]
        now = time.monotonic_ns()
        _RECORD.pack_into(self.memory, 0, now, sample, part, len(name), len(more), name, more)

    def end(self) -> None:
        _RECORD.pack_into(self.memory, 0, 0, 0, 0, 0, 0, b"", b"")

    def read(self) -> Decoding | None:
        """The record; None while nothing is decoded. Half a record where it is just written."""
        began_ns, sample, part, key_bytes, detail_bytes, *texts = _RECORD.unpack_from(self.memory)
        if not began_ns:
            return None
        key, detail = (
            text[:length].decode("utf-8", "ignore")
            for text, length in zip(texts, (key_bytes, detail_bytes), strict=True)
        )
        return Decoding(began_ns, sample, part, key, detail)


def timeout_error(timeout: float, detail: str = "") -> DecodeTimeoutError:
    """The error of a sample whose decoder or function was stopped."""
    return DecodeTimeoutError(
        f"{detail}{': ' if detail else ''}a decoder or function did not return within "
        f"decode_timeout={timeout:g} s, and its worker process was stopped: raise decode_timeout= "
        "if it may take this long, or leave such samples out with on_error='skip' or 'replace'"
    )


class WorkerStatus:
    """The status of all worker threads; workers inherit its file by the descriptor."""

    def __init__(self, descriptor: int, num_workers: int, num_threads: int) -> None:
        self.descriptor = descriptor
        self.num_workers = num_workers
        rows = map_without_file(descriptor).view(_ROW)
        # The last row is the trainer's.
        self._trainer = rows["task"][-1]
        self._threads = rows[:-1].reshape(num_workers, num_threads)
        self._tasks = self._threads["task"]

    @classmethod
    def create(cls, num_workers: int, num_threads: int) -> WorkerStatus:
        """Make the table, with no thread started."""
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
        self._tasks[worker, thread] = (batch + 1, start)

    def end(self, worker: int, thread: int) -> None:
        self._tasks[worker, thread] = _IDLE

    def clear(self, worker: int) -> None:
        """Mark the threads of a stopped worker as not started."""
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
        """Read the decoding under way in each thread of a worker."""
        threads = range(self._threads.shape[1])
        return [DecodeProgress(self.record(worker, thread)).read() for thread in threads]

    def close(self) -> None:
        os.close(self.descriptor)


def _num_bytes(num_workers: int, num_threads: int) -> int:
    return (num_workers * num_threads + 1) * _ROW.itemsize


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
        # The number of messages, and when it was seen.
        self._idle_since: tuple[int, int] | None = None

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

    def has_lost(self, num_messages: int) -> bool:
        """Whether all workers have been idle for a second since one was stopped.

        Asked only while all tasks were sent. Another number of messages, sent or received, starts
        the second again: between two looks, workers may have been busy.
        """
        if not self._has_stopped or not self._status.all_idle:
            self._idle_since = None
            return False
        now = time.monotonic_ns()
        if self._idle_since is None or self._idle_since[0] != num_messages:
            self._idle_since = num_messages, now
        if now - self._idle_since[1] < _IDLE_NS:
            return False
        self._idle_since = None
        return True
