"""One iteration over worker processes: a helper thread makes its batches ahead of the program.

It sends the tasks, receives the answers and puts the batches together, in order, whatever the
program does meanwhile: the caller's thread only takes batches from a queue, and waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import wait
from queue import Empty, SimpleQueue
from typing import Protocol

from shardwise.base.errors import StallError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch, chunk_ranges
from shardwise.engine.batch.prefetch import PrefetchBound, batch_bytes
from shardwise.engine.processes.session import END_TIMEOUT_S, Session
from shardwise.engine.processes.tasks import Answer, PendingBatch, Stopped, take_answer
from shardwise.engine.processes.worker_status import Decoding
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.stall import stall_error, stuck_error

_logger = logging.getLogger("shardwise")


class RunOptions(Protocol):
    """The options of the executor, whose documentation has them."""

    builder: BatchBuilder
    bound: PrefetchBound
    num_workers: int
    num_threads: int
    num_prefetch: int
    timeout: float | None
    decode_timeout: float | None


class Run:
    """One iteration: its batches in progress, by number, and those that are ready, oldest first.

    The executor's options hold as they are when each batch is started.
    """

    def __init__(
        self, executor: RunOptions, session: Session, requests: Iterator[BatchRequest]
    ) -> None:
        self._executor = executor
        self._builder = executor.builder
        self._bound = executor.bound
        self._session = session
        self._pool = session.pool
        # Workers share the cache on disk; what they keep in memory, they announce themselves.
        self._requests = self._builder.read_ahead(requests, cached=True)
        self._pending: dict[int, PendingBatch] = {}
        # What is made, in order, and at last None; the error that ends it.
        self._ready: SimpleQueue[Batch | None] = SimpleQueue()
        self._errors: list[BaseException] = []
        self._num_started = self._num_finished = 0
        # Written by the caller's thread: how many it has taken, how many it had and whether the
        # next one was late at each request, whether it waits, and whether it has left.
        self._num_taken = 0
        self._asked: deque[tuple[int, bool]] = deque()
        self._is_awaited = self._is_over = False
        # Written by the helper thread: itself, and whether it waits for the ids of a batch.
        self._thread, self._is_asking = 0, False
        # The run before this one, if it has not ended, ends now.
        session.run_number += 1
        self._number = session.run_number
        self._pool.wake()
        ready = self._ready
        # Also where it never starts, since the loader was closed.
        self._made = session.helper.submit(self._make, then=lambda _: ready.put(None))

    def batches(self) -> Generator[Batch, None, None]:
        while True:
            self._require_newest()
            num_ready = self._num_finished - self._num_taken if self._num_taken else None
            is_late = self._ready.empty()
            if num_ready is not None:
                self._asked.append((self._num_taken, is_late))
            if is_late:
                self._is_awaited = True
                self._pool.wake()
            whole = self._wait()
            self._is_awaited = False
            if whole is None:
                self._session.require_usable()
                if self._errors:
                    raise self._errors.pop()
                return
            self._num_taken += 1
            self._pool.wake()
            whole.num_ready = num_ready
            whole.is_next_ready = lambda: not self._ready.empty()
            yields = [whole]
            # While the program has it, nothing here may keep its memory.
            del whole
            yield yields.pop()

    def _require_newest(self) -> None:
        self._session.require_usable()
        if self._number != self._session.run_number:
            raise RuntimeError("a newer iterator of this executor has begun")

    def _wait(self) -> Batch | None:
        """Wait for the oldest batch; None at the end."""
        timeout = self._executor.timeout
        while True:
            try:
                return self._ready.get(timeout=timeout)
            except Empty:
                pending = [*self._pending.values()]
            if not self._thread:
                raise StallError(
                    f"no batch for {timeout:g} s: an earlier iterator of this loader has not "
                    "ended, whose sampler has not returned; raise timeout= if it may take this long"
                )
            if self._is_asking:
                raise StallError(
                    f"no batch for {timeout:g} s: the sampler has not returned the ids of the next "
                    "step; raise timeout= if it may take this long"
                )
            for oldest in pending[:1]:
                start = min([*oldest.missing], default=-1)
                number = self._pool.status.worker_of(oldest.number, start)
                worker = "a free worker" if number is None else f"worker process {number}"
                if start < 0:
                    start, worker = 0, "the thread that puts it together"
                request = oldest.partial.request
                raise stall_error(self._builder.dataset, request, start, timeout or 0.0, worker)

    def end(self) -> None:
        """Give up the batches in progress."""
        if self._session.pid != os.getpid():
            return  # a forked child has neither the thread nor the processes
        self._is_over = True
        self._pool.wake()
        # An iterator may be dropped by any thread, when garbage is collected. Where the processes
        # have ended, closing them has waited already.
        if self._thread != threading.get_ident() and self._session.is_open:
            wait([self._made], END_TIMEOUT_S)

    def _make(self) -> None:
        """Make the batches, in the helper thread."""
        self._thread = threading.get_ident()
        self._pool.status.run = self._number
        has_ended = False
        try:
            while not self._is_over:
                self._require_newest()
                while self._asked:
                    self._grow(*self._asked.popleft())
                is_full = has_ended or self._is_full()
                if not is_full:
                    has_ended = not self._start_next()
                if has_ended and not self._pending:
                    self._requests.raise_error()
                    return
                # A slow sampler holds no batch back that workers have finished.
                self._receive(self._pool.answers(wait=is_full))
        except BaseException as error:  # noqa: BLE001 - raised where the batch is awaited
            self._errors.append(error)
        finally:
            self._bound.ended()
            self._requests.close()
            for batch in self._pending.values():
                batch.error = None  # its frames hold the batch
                if batch.slot is not None:
                    # A worker may still write into it: it is never used again.
                    batch.slot.abandon()
            self._pending.clear()
            self._pool.drop(self._number)

    def _is_full(self) -> bool:
        """Whether the prefetch depth is reached.

        The depth is one less, unless bytes bound it, while the program has a batch and asks for
        none.
        """
        num_prefetch = self._executor.num_prefetch
        depth = self._bound.depth(num_prefetch, leave=not self._is_awaited)
        return self._num_started - self._num_taken >= depth

    def _start_next(self) -> bool:
        """Start the next batch; returns False if there is none."""
        self._is_asking = True
        request = next(self._requests, None)
        self._is_asking = False
        if request is None:
            return False
        batch = self._submit(request)
        self._num_started += 1
        self._pending[batch.number] = batch
        self._bound.begun(batch.partial)
        return True

    def _grow(self, num_taken: int, is_late: bool) -> None:
        executor, growth = self._executor, self._bound.growth
        if self._num_started - num_taken >= self._bound.depth(executor.num_prefetch, leave=1):
            num_left = sum(len(batch.missing) for batch in self._pending.values())
            is_idle = num_left < executor.num_workers * executor.num_threads
            growth.asked(is_late=is_late, is_idle=is_idle)
            self._session.slots.keep(executor.num_prefetch * growth.factor + 2)

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
        num_threads = self._executor.num_workers * self._executor.num_threads
        data, row_bytes = self._builder.dataset, self._bound.row_bytes
        chunks = dict(chunk_ranges(num_rows, num_threads, samples=data, row_bytes=row_bytes))
        partial = PartialBatch(request, rows, learned=learned)
        batch = PendingBatch(number, partial, slot, chunks, learned=session.learned)
        for start in chunks:
            self._send(batch, start)
        return batch

    def _finish_loaded(self) -> None:
        """Finish the batches that are loaded, in order."""
        for batch in [*self._pending.values()]:
            if batch.missing:
                return
            if batch.error is not None:
                raise batch.error
            # Without a row, a sample is decoded for it, here beyond the reach of any deadline.
            is_watched = self._executor.decode_timeout is not None
            if is_watched and not batch.is_whole and not batch.has_rows:
                batch.is_whole, batch.slot, batch.missing = True, None, {0}
                self._send(batch, 0, is_again=True)
                return
            whole = self._finish(batch)
            del self._pending[batch.number]
            self._num_finished += 1
            self._ready.put(whole)

    def _finish(self, batch: PendingBatch) -> Batch:
        whole = batch.read()
        if whole is None:
            is_copied = self._session.make_lasting(batch.partial)
            whole = self._builder.finish(batch.partial)
            for part in whole.parts or [whole]:
                part.memory = None if is_copied else batch.slot
        self._requests.finish(batch.partial.request)
        self._session.learn(whole)
        whole.num_bytes = batch_bytes(whole)
        self._bound.made(whole)
        self._builder.prepare(whole)
        return whole

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
