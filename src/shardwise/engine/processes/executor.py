"""The executor of worker processes: they share the row chunks of several batches.

The trainer sends tasks on one socket, from which any free worker takes the next. Rows of a fixed
shape are written into anonymous memory that both have mapped, everything else travels in messages.
Workers are fresh interpreters, never forks of the trainer. The processes share no lock and no
barrier: a worker that dies is an error here (`WorkerError`), never a wait. With a
`decode_timeout`, a worker whose decoder does not return is stopped, and its chunks are loaded again
by others. Batches are bit by bit those of the inline executor (I5).

The caller's thread receives answers and waits; a helper thread puts batches together, in order.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

from shardwise.base.errors import DecodeTimeoutError, StallError, WorkerError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch, chunk_ranges
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES, PrefetchBound, batch_bytes
from shardwise.engine.processes.session import Session
from shardwise.engine.processes.tasks import Answer, PendingBatch, Stopped, num_ready, take_answer
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.processes.worker_status import Decoding
from shardwise.engine.request import Batch, BatchRequest, Concurrency
from shardwise.engine.stall import stall_error, stuck_error

_logger = logging.getLogger("shardwise")


@dataclass(kw_only=True, eq=False)
class ProcessExecutor:
    """Builds batches with worker processes.

    Attributes:
        builder: travels to the workers by cloudpickle.
        num_threads: threads in each process.
        num_prefetch: batches that are ready or in progress at most; more where they take different
            times, see `DepthGrowth`.
        prefetch_bytes: memory of prefetched batches, the program's and video decoders, see
            `PrefetchBound`.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
        decode_timeout: seconds that a decoder or function of a `map()` may take for one sample
            before its worker is stopped and the sample is a bad one, or None.
    """

    builder: BatchBuilder = field(kw_only=False)
    num_workers: int
    num_threads: int = 1
    num_prefetch: int = 4
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    timeout: float | None = None
    decode_timeout: float | None = None

    def __post_init__(self) -> None:
        self.bound = PrefetchBound(self.builder, self.prefetch_bytes)
        self._session: Session | None = None

    @property
    def concurrency(self) -> Concurrency:
        """The processes and their threads, where a collate of the user's runs, too."""
        return Concurrency(
            "processes",
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            num_prefetch=self.num_prefetch * self.bound.growth.factor,
            collate=self.builder.collate is not None,
        )

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        """Yield one batch for each request, in order; processes start at the first `next`."""
        session = self.start()
        run = _Run(self, session, requests)
        try:
            yield from run.batches()
        except DecodeTimeoutError:
            # Its worker was replaced: waiting for the end of one that starts would delay the error.
            raise
        except (
            CancelledError, LookupError, OSError, ValueError, WorkerError, StallError
        ) as error:  # fmt: skip
            # Closed by another thread, or by the end of a program whose daemon thread iterates.
            session.require_usable()
            # A process is gone or stuck: the next run starts new ones.
            if isinstance(error, (WorkerError, StallError)) and self._session is session:
                self.close()
            raise
        finally:
            run.end()

    def close(self) -> None:
        """End the processes; batches that the user holds keep their memory."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __getstate__(self) -> dict[str, Any]:
        """Processes do not travel: a copy starts its own."""
        return {**self.__dict__, "_session": None}

    @property
    def is_ready(self) -> bool:
        """Whether the processes were launched and all of them take tasks."""
        session = self._session
        if session is None or session.pid != os.getpid():
            return False
        if not session.has_begun:
            session.has_begun = session.pool.have_begun()
        return session.has_begun

    def start(self) -> Session:
        """Start the processes, unless they are; does not wait for them."""
        # A forked child must not speak on its parent's socket.
        if self._session is None or self._session.pid != os.getpid():
            pool = WorkerPool(
                self.builder,
                num_workers=self.num_workers,
                num_threads=self.num_threads,
                decode_timeout=self.decode_timeout,
            )
            self._session = Session(self, self.builder, pool, max_idle=self.num_prefetch + 2)
        return self._session


class _Run:
    """One iteration: the batches in progress, oldest first, by number.

    The executor's options hold as they are when each batch is started.
    """

    def __init__(
        self, executor: ProcessExecutor, session: Session, requests: Iterator[BatchRequest]
    ) -> None:
        self._executor = executor
        self._builder = executor.builder
        self._bound = executor.bound
        self._session = session
        self._pool = session.pool
        # Workers share the cache on disk; what they keep in memory, they announce themselves.
        self._requests = self._builder.read_ahead(requests, cached=True)
        self._pending: dict[int, PendingBatch] = {}
        # The error of checking whether the next batch is ready: raised once that is requested.
        self._failure: Exception | None = None
        self._number = self._pool.status.run = next(session.run_numbers)

    def batches(self) -> Generator[Batch, None, None]:
        ready: int | None = None
        while True:
            self._session.require_usable()
            if self._pool.status.run != self._number:
                raise RuntimeError("a newer iterator of this executor has begun")
            if self._failure is not None:
                raise self._failure
            if self._pending:
                self._receive(self._pool.answers(0))
                ready = num_ready(self._pending)
                self._grow(is_late=not ready)
            self._fill(leave=0)
            if not self._pending:
                return
            oldest = self._pending[next(iter(self._pending))]
            whole = self._wait(oldest)
            del self._pending[oldest.number]
            self._requests.finish(oldest.partial.request)
            self._session.learn(whole, oldest.learnable)
            self._bound.made(whole)
            whole.num_ready = ready
            whole.is_next_ready = self._is_next_ready
            ready = 0
            # The first batch shows how large they are: prefetch more before the caller asks.
            self._fill(leave=1)
            yields = [whole]
            # While the program has it, nothing here may keep its memory.
            del oldest, whole
            yield yields.pop()

    def end(self) -> None:
        """Give up the batches in progress."""
        self._bound.ended()
        self._requests.close()
        if self._session.pid == os.getpid():
            self._pool.drop(self._number)
        for batch in self._pending.values():
            if batch.finished is not None:
                batch.finished.cancel()
            if batch.slot is not None:
                # A worker may still write into it: it is never used again.
                batch.slot.abandon()

    def _fill(self, *, leave: int) -> None:
        """Start batches up to the prefetch depth; `leave` less, unless bytes bound it."""
        while len(self._pending) < self._bound.depth(self._executor.num_prefetch, leave=leave):
            request = next(self._requests, None)
            if request is None:
                return
            batch = self._submit(request)
            self._pending[batch.number] = batch
            self._bound.begun(batch.partial)

    def _grow(self, *, is_late: bool) -> None:
        executor, growth = self._executor, self._bound.growth
        if len(self._pending) >= self._bound.depth(executor.num_prefetch, leave=1):
            num_left = sum(len(batch.missing) for batch in self._pending.values())
            is_idle = num_left < executor.num_workers * executor.num_threads
            growth.asked(is_late=is_late, is_idle=is_idle)
            self._session.keep_slots(executor.num_prefetch * growth.factor + 2)

    def _submit(self, request: BatchRequest) -> PendingBatch:
        session, number = self._session, next(self._session.batch_numbers)
        num_rows = len(request.ids)
        if self._builder.collate is not None:
            partial = PartialBatch(request, {})
            batch = PendingBatch(number, partial, None, {0: num_rows}, is_whole=True)
            self._send(batch, 0)
            return batch
        slot, views = session.views(num_rows)
        rows = {name: views[name] for name in session.layout}
        learned = {name: views[name] for name in session.learned}
        ranges = chunk_ranges(
            num_rows,
            self._executor.num_workers * self._executor.num_threads,
            samples=self._builder.dataset,
            row_bytes=self._bound.row_bytes,
        )
        chunks = dict(ranges)
        partial = PartialBatch(request, rows, learned=learned)
        batch = PendingBatch(number, partial, slot, chunks, learned=session.learned)
        for start in chunks:
            self._send(batch, start)
        return batch

    def _is_next_ready(self) -> bool:
        """Whether the next batch, or its error, can be had without waiting."""
        try:
            self._receive(self._pool.answers(0))
        except Exception as error:  # noqa: BLE001 - raised in the next batch's place
            self._failure = error
            return True
        for oldest in self._pending.values():
            finished = oldest.finished
            return oldest.error is not None or (finished is not None and finished.done())
        return False

    def _finish_loaded(self) -> None:
        """Have the helper thread finish the batches that are loaded, in order."""
        for batch in self._pending.values():
            if batch.missing or batch.error is not None or self._lacks_rows(batch):
                return
            if batch.finished is None:
                batch.finished = self._session.helper.submit(self._finish, batch)

    def _finish(self, batch: PendingBatch) -> Batch:
        whole = batch.read()
        if whole is None:
            is_copied = self._session.make_lasting(batch.partial)
            whole = self._builder.finish(batch.partial)
            batch.learnable = self._session.learnable(whole)
            for part in whole.parts or [whole]:
                part.memory = None if is_copied else batch.slot
        whole.num_bytes = batch_bytes(whole)
        self._builder.prepare(whole)
        return whole

    def _lacks_rows(self, batch: PendingBatch) -> bool:
        """Whether a worker has to make this batch: without a row, it decodes a sample for it.

        Here, no deadline could stop the decoder.
        """
        is_watched = self._executor.decode_timeout is not None
        return is_watched and not batch.is_whole and not batch.has_rows

    def _wait(self, batch: PendingBatch) -> Batch:
        """Receive answers until the oldest batch is finished; raise the error of a failed chunk."""
        timeout = self._executor.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while batch.missing:
                left = None if deadline is None else deadline - time.monotonic()
                answers = self._pool.answers(left)
                self._receive(answers)
                if not answers and timeout is not None:
                    start = min(batch.missing)
                    number = self._pool.status.worker_of(batch.number, start)
                    worker = "a free worker" if number is None else f"worker process {number}"
                    request = batch.partial.request
                    raise stall_error(self._builder.dataset, request, start, timeout, worker)
            if batch.error is not None:
                raise batch.error
            if not self._lacks_rows(batch):
                break
            batch.is_whole, batch.slot, batch.missing = True, None, {0}
            self._send(batch, 0, is_again=True)
        self._finish_loaded()
        assert batch.finished is not None
        try:
            return batch.finished.result(deadline and max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            if batch.finished.done():
                raise
            assert timeout is not None
            request, worker = batch.partial.request, "the thread that puts it together"
            raise stall_error(self._builder.dataset, request, 0, timeout, worker) from None

    def _receive(self, answers: Iterable[Answer | Stopped]) -> None:
        """Add answers to the batches that they belong to; send again what was lost."""
        pending = self._pending
        for answer in answers:
            if isinstance(answer, Answer):
                take_answer(answer, pending)
            elif answer.is_idle:
                for batch in pending.values():
                    if batch.slot is not None and batch.missing:
                        # Should its worker be alive all the same, it may write there later.
                        batch.slot.abandon()
                    for start in sorted(batch.missing):
                        self._send(batch, start, is_again=True)
            else:
                for (number, start), decoding in answer.tasks.items():
                    if number in pending and start in pending[number].missing:
                        self._load_again(pending[number], start, decoding)
        self._finish_loaded()

    def _load_again(self, batch: PendingBatch, start: int, decoding: Decoding | None) -> None:
        """Give the chunk of a stopped worker to another, without the sample that was stuck."""
        # The stuck sample of a whole column is not known: the next worker will find out.
        if decoding is not None and decoding.sample >= 0:
            timeout = self._executor.decode_timeout
            assert timeout is not None
            error = stuck_error(self._builder.dataset, decoding, timeout)
            if self._builder.on_error == "raise" and decoding.sample in batch.partial.request.ids:
                batch.fail(start, error)
                return
            _logger.warning("%s", error)
            batch.stuck |= {(decoding.sample, decoding.part)}
        self._send(batch, start, is_again=True)

    def _send(self, batch: PendingBatch, start: int, *, is_again: bool = False) -> None:
        task = batch.task(self._number, start, is_again=is_again)
        self._pool.send(task, None if batch.slot is None else batch.slot.descriptor)
