"""Worker processes: pieces of a window of batches are shared among processes and their threads.

The trainer sends pieces on one socket, from which whichever worker is free takes the next; rows
of a fixed shape are written into anonymous memory that both have mapped, all else travels as
messages. Workers are fresh interpreters, never forks of the trainer. There is no lock and no
barrier between processes: a worker that dies is an error here (`WorkerError`), never a wait.
Batches are bit by bit those of the inline executor (I5).
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
from shardwise.engine.batch.builder import BatchMaker
from shardwise.engine.batch.partial_batch import Draft
from shardwise.engine.batch.prefetch import piece_ranges, stall_error, window_size
from shardwise.engine.concurrency import Hands
from shardwise.engine.processes.shared_columns import learned_layout
from shardwise.engine.processes.shared_memory import RowLayout, Slot, SlotPool
from shardwise.engine.processes.tasks import Answer, Task
from shardwise.engine.processes.worker_errors import unpack_error
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.request import Batch, Work
from shardwise.errors import StallError, WorkerError

__all__ = ["ProcessExecutor"]


@dataclass(slots=True)
class _Pending:
    """A batch under way: what is filled, and the first rows of the pieces that are still out."""

    number: int
    draft: Draft
    slot: Slot | None
    out: set[int]
    made: Batch | None = None
    error: Exception | None = None


class ProcessExecutor:
    """Makes batches with worker processes.

    Args:
        maker: makes the batches; it travels to the workers by cloudpickle.
        num_workers: processes.
        num_threads: threads in each.
        num_prefetch: batches that may be ready or under way.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        num_workers: int,
        num_threads: int = 1,
        num_prefetch: int = 4,
        timeout: float | None = None,
    ) -> None:
        self.maker = maker
        self.num_workers = num_workers
        self.num_threads = num_threads
        self.num_prefetch = num_prefetch
        self.timeout = timeout
        self._started: _Started | None = None
        self._num_runs = 0
        self._num_batches = 0

    @property
    def hands(self) -> Hands:
        """The processes and their threads; a collate of the user's runs in them, too."""
        return Hands(
            "processes",
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            num_prefetch=self.num_prefetch,
            collate=self.maker.collate is not None,
        )

    def run(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        """Yield one batch for each work, in order; processes start at the first `next`."""
        started = self._start()
        self._num_runs += 1
        run = started.pool.board.run = self._num_runs
        pending: dict[int, _Pending] = {}
        window = self.num_prefetch
        num_ready: int | None = None
        try:
            while True:
                started.require_own()
                if started.pool.board.run != run:
                    raise RuntimeError("a newer iterator of this executor has begun")
                if pending:
                    _take(started.pool.answers(0), pending)
                    num_ready = _num_ready(pending)
                while len(pending) < window:
                    work = next(works, None)
                    if work is None:
                        break
                    batch = self._submit(started, run, work)
                    pending[batch.number] = batch
                    window = window_size(self.num_prefetch, batch.draft.rows | batch.draft.spare)
                if not pending:
                    return
                oldest = pending[next(iter(pending))]
                self._wait(started, oldest, pending)
                del pending[oldest.number]
                made = oldest.made or self.maker.finish(started.settled(oldest.draft))
                started.learn(made)
                made.num_ready = num_ready
                num_ready = 0
                yield made
        except (WorkerError, StallError):
            # Of the processes one is gone or stuck: the next run starts new ones.
            if self._started is started:
                self.close()
            raise
        finally:
            if started.pid == os.getpid():
                started.pool.drop(run)
            for batch in pending.values():
                if batch.slot is not None:
                    # A worker may still be writing into it: it is never lent again.
                    batch.slot.retired = True

    def close(self) -> None:
        """End the processes; the memory of batches that the user holds stays theirs."""
        started, self._started = self._started, None
        if started is not None:
            started.close()

    def __getstate__(self) -> dict[str, Any]:
        """Processes stay behind: whoever unpickles this starts its own."""
        return {**self.__dict__, "_started": None}

    def _start(self) -> _Started:
        # A forked child must not speak on its parent's socket.
        if self._started is None or self._started.pid != os.getpid():
            self._started = _Started(self)
        return self._started

    def _submit(self, started: _Started, run: int, work: Work) -> _Pending:
        number = self._num_batches
        self._num_batches += 1
        num_rows = len(work.ids)
        if self.maker.collate is not None:
            started.pool.send(run, Task(run, number, 0, work, num_rows, whole=True), None)
            return _Pending(number, Draft(work, {}), None, {0})
        slot, views = started.views(num_rows)
        rows = {name: views[name] for name in started.layout}
        spare = {name: views[name] for name in started.spare}
        pieces = piece_ranges(
            num_rows,
            self.num_workers * self.num_threads,
            light_row_bytes=self.maker.dataset.cost.row_bytes,
            reads_at_once=self.maker.dataset.cost.batch_is_one_request,
        )
        for start, stop in pieces:
            piece = Work(work.epoch, work.step, work.ids[start:stop])
            if slot is None:
                started.pool.send(run, Task(run, number, start, piece, num_rows), None)
                continue
            task = Task(
                run, number, start, piece, num_rows, slot.number, slot.memory.nbytes, started.spare
            )
            started.pool.send(run, task, slot.descriptor)
        draft = Draft(work, rows, spare=spare)
        return _Pending(number, draft, slot, {start for start, _ in pieces})

    def _wait(self, started: _Started, batch: _Pending, pending: Mapping[int, _Pending]) -> None:
        """Take answers in until the oldest batch is whole; a piece that failed raises its error."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while batch.out:
            left = None if deadline is None else deadline - time.monotonic()
            answers = started.pool.answers(left)
            _take(answers, pending)
            if not answers and self.timeout is not None:
                start = min(batch.out)
                holder = started.pool.board.holder(batch.number, start)
                who = "a free worker" if holder is None else f"worker process {holder}"
                raise stall_error(self.maker.dataset, batch.draft.work, start, self.timeout, who)
        if batch.error is not None:
            raise batch.error


def _take(answers: Iterable[Answer], pending: Mapping[int, _Pending]) -> None:
    """Put answers in their places."""
    for answer in answers:
        batch = pending.get(answer.batch)
        if batch is None or answer.start not in batch.out:
            continue  # to an iterator that was given up, or behind an error
        batch.out.discard(answer.start)
        if answer.error is not None:
            # Raised when the batch is the oldest one: errors keep the order of batches, too.
            batch.error = unpack_error(answer.error)
            # Of several that of the first piece is raised: what is behind it is for nobody.
            batch.out = {start for start in batch.out if start < answer.start}
        elif isinstance(answer.value, Batch):
            batch.made = answer.value
        else:
            batch.draft.pieces[answer.start] = answer.value


def _num_ready(pending: Mapping[int, _Pending]) -> int:
    """How many batches are filled, from the oldest on."""
    return sum(1 for _ in takewhile(lambda batch: not batch.out, pending.values()))


class _Started:
    """What an executor holds while it is started: processes and memory; ended with it."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self.pid = os.getpid()
        self.pool = WorkerPool(
            executor.maker, num_workers=executor.num_workers, num_threads=executor.num_threads
        )
        # A loader that is dropped, and the interpreter's end, end the processes.
        self._end = weakref.finalize(executor, _end, self.pid, self.pool)
        self.layout = dict(executor.maker.dataset.layout())
        self.spare: dict[str, Layout] = {}
        maker = executor.maker
        # Nothing to learn where a collate of the user's, or padding, makes columns of its own.
        self._is_learned = maker.collate is not None or maker.ragged.ragged == "pad"
        self._max_idle = executor.num_prefetch + 2
        self._slots: SlotPool | None = None
        self._slot_rows = 0
        self._slot_numbers = itertools.count()

    def require_own(self) -> None:
        """Refuse a process that was forked from the one that started the workers."""
        if self.pid != os.getpid():
            raise WorkerError(
                f"process {os.getpid()} was forked from process {self.pid}, whose worker processes "
                "make the batches of this iterator: begin a new one here, for which this process "
                "starts workers of its own"
            )

    def learn(self, batch: Batch) -> None:
        """See in the first batch which columns may be put into the memory of those to come."""
        if not self._is_learned and batch.num_rows:
            self._is_learned = True
            self.spare = learned_layout(batch.data, self.layout)
            if self.spare and self._slots is not None:
                # Their slots are larger.
                self._slots.close()
                self._slots = None

    def views(self, num_rows: int) -> tuple[Slot | None, dict[str, NDArray[Any]]]:
        """Memory for a batch of so many rows, and the rows in it; no slot where there are none."""
        layout = RowLayout({**self.layout, **self.spare})
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

    def settled(self, draft: Draft) -> Draft:
        """The batch in memory that the user may keep: a copy where slots are scarce."""
        if self._slots is not None and self._slots.scarce:
            draft.rows = {name: rows.copy() for name, rows in draft.rows.items()}
            draft.spare = {name: rows.copy() for name, rows in draft.spare.items()}
        return draft

    def close(self) -> None:
        """End the processes and give the idle memory back."""
        self._end()
        if self._slots is not None:
            self._slots.close()


def _end(pid: int, pool: WorkerPool) -> None:
    # In a forked child the processes are not its own.
    if pid == os.getpid():
        pool.close()
