"""The executor of worker processes: they share the row chunks of several batches.

The trainer sends tasks on one socket, from which any free worker takes the next. Rows of a fixed
shape are written into anonymous memory that both have mapped, everything else travels in messages.
Workers are fresh interpreters, never forks of the trainer. There is no lock and no barrier between
processes: a worker that dies is an error here (`WorkerError`), never a wait. Batches are bit by bit
those of the inline executor (I5).
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from numpy.typing import NDArray

from shardwise.columns import Layout
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import chunk_ranges
from shardwise.engine.batch.partial_batch import PartialBatch
from shardwise.engine.batch.prefetch import prefetch_depth
from shardwise.engine.concurrency import Concurrency
from shardwise.engine.processes.shared_columns import learned_layout
from shardwise.engine.processes.shared_memory import RowLayout, Slot, SlotPool
from shardwise.engine.processes.tasks import Answer, Task
from shardwise.engine.processes.worker_errors import unpack_error
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.stall import stall_error
from shardwise.errors import StallError, WorkerError

__all__ = ["ProcessExecutor"]


@dataclass(slots=True)
class _Pending:
    """A batch in progress.

    Attributes:
        number: names it in answers.
        partial: the rows and chunks that are loaded.
        slot: the memory of its rows.
        missing: the first rows of the chunks that are not loaded yet.
        whole: the batch, where a worker has collated it.
        error: the error of its first chunk that failed.
    """

    number: int
    partial: PartialBatch
    slot: Slot | None
    missing: set[int]
    whole: Batch | None = None
    error: Exception | None = None


class ProcessExecutor:
    """Builds batches with worker processes.

    Args:
        builder: builds the batches; it travels to the workers by cloudpickle.
        num_workers: processes.
        num_threads: threads in each.
        num_prefetch: batches that are ready or in progress at most.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        *,
        num_workers: int,
        num_threads: int = 1,
        num_prefetch: int = 4,
        timeout: float | None = None,
    ) -> None:
        self.builder = builder
        self.num_workers = num_workers
        self.num_threads = num_threads
        self.num_prefetch = num_prefetch
        self.timeout = timeout
        self._session: _Session | None = None
        self._num_runs = 0
        self._num_batches = 0

    @property
    def concurrency(self) -> Concurrency:
        """The processes and their threads, where a collate of the user's runs, too."""
        return Concurrency(
            "processes",
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            num_prefetch=self.num_prefetch,
            collate=self.builder.collate is not None,
        )

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        """Yield one batch for each request, in order; processes start at the first `next`."""
        session = self._start()
        self._num_runs += 1
        run = session.pool.status.run = self._num_runs
        pending: dict[int, _Pending] = {}
        depth = self.num_prefetch
        num_ready: int | None = None
        try:
            while True:
                session.require_own()
                if session.pool.status.run != run:
                    raise RuntimeError("a newer iterator of this executor has begun")
                if pending:
                    _receive(session.pool.answers(0), pending)
                    num_ready = _num_ready(pending)
                while len(pending) < depth:
                    request = next(requests, None)
                    if request is None:
                        break
                    batch = self._submit(session, run, request)
                    pending[batch.number] = batch
                    depth = prefetch_depth(self.num_prefetch, batch.partial)
                if not pending:
                    return
                oldest = pending[next(iter(pending))]
                self._wait(session, oldest, pending)
                del pending[oldest.number]
                whole = oldest.whole or self.builder.finish(session.lasting(oldest.partial))
                session.learn(whole)
                whole.num_ready = num_ready
                num_ready = 0
                yield whole
        except (WorkerError, StallError):
            # A process is gone or stuck: the next run starts new ones.
            if self._session is session:
                self.close()
            raise
        finally:
            if session.pid == os.getpid():
                session.pool.drop(run)
            for batch in pending.values():
                if batch.slot is not None:
                    # A worker may still write into it: it is never used again.
                    batch.slot.retired = True

    def close(self) -> None:
        """End the processes; batches that the user holds keep their memory."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __getstate__(self) -> dict[str, Any]:
        """Processes do not travel: a copy starts its own."""
        return {**self.__dict__, "_session": None}

    def _start(self) -> _Session:
        # A forked child must not speak on its parent's socket.
        if self._session is None or self._session.pid != os.getpid():
            self._session = _Session(self)
        return self._session

    def _submit(self, session: _Session, run: int, request: BatchRequest) -> _Pending:
        number = self._num_batches
        self._num_batches += 1
        num_rows = len(request.ids)
        if self.builder.collate is not None:
            session.pool.send(run, Task(run, number, 0, request, num_rows, whole=True), None)
            return _Pending(number, PartialBatch(request, {}), None, {0})
        slot, views = session.views(num_rows)
        rows = {name: views[name] for name in session.layout}
        learned = {name: views[name] for name in session.learned}
        num_threads = self.num_workers * self.num_threads
        chunks = chunk_ranges(num_rows, num_threads, samples=self.builder.dataset)
        for start, stop in chunks:
            chunk = BatchRequest(request.epoch, request.step, request.ids[start:stop])
            if slot is None:
                session.pool.send(run, Task(run, number, start, chunk, num_rows), None)
                continue
            task = Task(
                run,
                number,
                start,
                chunk,
                num_rows,
                slot.number,
                slot.memory.nbytes,
                session.learned,
            )
            session.pool.send(run, task, slot.descriptor)
        partial = PartialBatch(request, rows, learned=learned)
        return _Pending(number, partial, slot, {start for start, _ in chunks})

    def _wait(self, session: _Session, batch: _Pending, pending: Mapping[int, _Pending]) -> None:
        """Receive answers until the oldest batch is loaded; raise the error of a failed chunk."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while batch.missing:
            left = None if deadline is None else deadline - time.monotonic()
            answers = session.pool.answers(left)
            _receive(answers, pending)
            if not answers and self.timeout is not None:
                start = min(batch.missing)
                number = session.pool.status.worker_of(batch.number, start)
                worker = "a free worker" if number is None else f"worker process {number}"
                request = batch.partial.request
                raise stall_error(self.builder.dataset, request, start, self.timeout, worker)
        if batch.error is not None:
            raise batch.error


def _receive(answers: Iterable[Answer], pending: Mapping[int, _Pending]) -> None:
    """Add answers to the batches that they belong to."""
    for answer in answers:
        batch = pending.get(answer.batch)
        if batch is None or answer.start not in batch.missing:
            continue  # of an iterator that was given up, or behind an error
        batch.missing.discard(answer.start)
        if answer.error is not None:
            # Raised when the batch is the oldest one: errors keep the order of batches, too.
            batch.error = unpack_error(answer.error)
            # The error of the first chunk is raised: chunks behind this one are not needed.
            batch.missing = {start for start in batch.missing if start < answer.start}
        elif isinstance(answer.value, Batch):
            batch.whole = answer.value
        else:
            batch.partial.chunks[answer.start] = answer.value


def _num_ready(pending: Mapping[int, _Pending]) -> int:
    """How many batches are loaded, from the oldest on."""
    return sum(1 for _ in takewhile(lambda batch: not batch.missing, pending.values()))


class _Session:
    """The processes and the memory of an executor that runs; they end with it."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self.pid = os.getpid()
        self.pool = WorkerPool(
            executor.builder, num_workers=executor.num_workers, num_threads=executor.num_threads
        )
        # A loader that is dropped, and the interpreter's end, end the processes.
        self._end = weakref.finalize(executor, _end, self.pid, self.pool)
        self.layout = executor.builder.layout
        self.learned: dict[str, Layout] = {}
        builder = executor.builder
        # A collate of the user's, and padding, make columns of their own: nothing to learn.
        self._is_learned = builder.collate is not None or builder.ragged.ragged == "pad"
        self._max_idle = executor.num_prefetch + 2
        self._slots: SlotPool | None = None
        self._slot_rows = 0
        self._slot_numbers = itertools.count()

    def require_own(self) -> None:
        """Refuse a process that was forked from the one that started the workers."""
        if self.pid != os.getpid():
            raise WorkerError(
                f"process {os.getpid()} was forked from process {self.pid}, whose worker processes "
                "build the batches of this iterator: begin a new one here, for which this process "
                "starts workers of its own"
            )

    def learn(self, batch: Batch) -> None:
        """See in the first batch which columns can lie in the memory of the next ones."""
        if not self._is_learned and batch.num_rows:
            self._is_learned = True
            self.learned = learned_layout(batch.data, self.layout)
            if self.learned and self._slots is not None:
                # Their slots are larger.
                self._slots.close()
                self._slots = None

    def views(self, num_rows: int) -> tuple[Slot | None, dict[str, NDArray[Any]]]:
        """Memory for a batch, and its rows in it; no slot where nothing has a fixed shape."""
        layout = RowLayout({**self.layout, **self.learned})
        if not layout.fields or num_rows == 0:
            return None, layout.empty()
        if self._slots is None or num_rows > self._slot_rows:
            if self._slots is not None:
                self._slots.close()
            num_bytes = layout.num_bytes(num_rows)
            self._slots = SlotPool(num_bytes, max_idle=self._max_idle, numbers=self._slot_numbers)
            self._slot_rows = num_rows
        slot = self._slots.take()
        return slot, layout.views(self._slots.lend(slot), num_rows)

    def lasting(self, partial: PartialBatch) -> PartialBatch:
        """The batch in memory that the user may keep: a copy where slots are scarce."""
        if self._slots is not None and self._slots.scarce:
            partial.rows = {name: rows.copy() for name, rows in partial.rows.items()}
            partial.learned = {name: rows.copy() for name, rows in partial.learned.items()}
        return partial

    def close(self) -> None:
        """End the processes and give the idle memory back."""
        self._end()
        if self._slots is not None:
            self._slots.close()


def _end(pid: int, pool: WorkerPool) -> None:
    # In a forked child the processes are not its own.
    if pid == os.getpid():
        pool.close()
