"""The executor of threads: the row chunks of several batches are shared among one pool's threads.

Batches are cut into chunks of 16 to 128 rows, so that several threads fill the first one soon. They
are yielded in order; the prefetch depth is bounded in batches and in bytes. Decoders that release
the GIL run side by side. A thread that fills the last rows of a batch also finishes it: the
consumer's thread collates nothing. No thread ever waits for another: only the consumer waits, for
the oldest batch.

Without a decoder, threads compete for the GIL and load less than one thread alone, unless reads
block: then one thread is active, and all are where more than half of the recent batches blocked.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

from shardwise.base.errors import StallError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch, chunk_ranges
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES, PrefetchBound, batch_bytes
from shardwise.engine.request import Batch, BatchRequest, Concurrency
from shardwise.engine.stall import stall_error
from shardwise.engine.thread_pool import ThreadPool
from shardwise.storage import IO_COUNTS

# The share of the recent batches whose reads blocked: above 50 % all threads are active, below
# 10 % one is. A moving average over about ten batches.
_MOSTLY_BLOCKED, _SELDOM_BLOCKED = 0.5, 0.1
_DECAY = 0.9
# So many levels below the program's thread, which gets a core before them: beside 4 threads on 2
# cores a Python loop keeps 0.6 of its speed in place of 0.4.
_NICENESS = 5
# The key of the pool that loads large batches.
_FOR_LARGE = 0


@dataclass(slots=True)
class _Pending:
    """A batch in progress, the futures of its chunks by first row, and that of the whole batch."""

    partial: PartialBatch
    chunks: list[tuple[int, Future[None]]]
    whole: Future[Batch] = field(default_factory=Future)

    def is_filled(self) -> bool:
        return all(future.done() for _, future in self.chunks)

    def cancel(self) -> None:
        for _, future in self.chunks:
            future.cancel()


class _Finisher:
    """Finishes the batches of one run in order, one at a time, in the threads that fill them.

    A collate of the user's is called as one thread would call it: it need not be thread-safe.
    """

    def __init__(self, finish: Callable[[PartialBatch], Batch]) -> None:
        self._finish: Callable[[PartialBatch], Batch] | None = finish
        self._lock = threading.Lock()
        self._waiting: deque[_Pending] = deque()
        self._is_busy = False

    def add(self, pending: _Pending) -> None:
        """Finish this batch after those before it, once it is filled."""
        with self._lock:
            self._waiting.append(pending)

    def end(self) -> None:
        """Finish no more batches: a chunk in progress must not keep the executor alive."""
        with self._lock:
            self._waiting.clear()
            self._finish = None

    def advance(self, _filled: object = None) -> None:
        """Finish the filled batches, unless another thread does: it will see them, too."""
        while True:
            with self._lock:
                finish = self._finish
                if finish is None or self._is_busy:
                    return
                if not self._waiting or not self._waiting[0].is_filled():
                    return
                self._is_busy = True
                pending = self._waiting.popleft()
            try:
                for _, future in pending.chunks:
                    future.result()
                pending.whole.set_result(finish(pending.partial))
            except BaseException as error:  # noqa: BLE001 - raised where the batch is awaited
                pending.whole.set_exception(error)
            with self._lock:
                self._is_busy = False
            del pending, finish


@dataclass(kw_only=True, eq=False)
class ThreadExecutor:
    """Builds batches with a pool of threads.

    Attributes:
        num_prefetch: batches that are ready or in progress at most, when all threads are active;
            more where they take different times, see `DepthGrowth`.
        prefetch_bytes: memory of prefetched batches, the program's and video decoders, see
            `PrefetchBound`.
        is_fixed: whether all threads are always active.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
    """

    builder: BatchBuilder = field(kw_only=False)
    num_threads: int
    num_prefetch: int
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    is_fixed: bool = True
    timeout: float | None = None

    def __post_init__(self) -> None:
        # Two batches of two 4K clips, with their decoders, were 1.16 GB before any was made.
        self._bound = PrefetchBound(self.builder, self.prefetch_bytes, unmeasured_depth=1)
        # Pools by number of active threads; one for large batches has as many as they need.
        self._pools: dict[int, ThreadPool] = {}
        self._pid = 0
        self._num_active = self.num_threads if self.is_fixed else 1
        self._num_waits = 0
        self._blocked_share = 0.0

    @property
    def concurrency(self) -> Concurrency:
        """The threads that are active now."""
        depth = self._num_prefetch * self._bound.growth.factor
        return Concurrency("threads", num_threads=self._num_active, num_prefetch=depth)

    @property
    def _num_prefetch(self) -> int:
        return max(2, self.num_prefetch * self._num_active // self.num_threads)

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        """Yield one batch for each request, in order; prefetch starts at the first `next`."""
        pending: deque[_Pending] = deque()
        ahead = self.builder.read_ahead(requests)

        def finish(partial: PartialBatch) -> Batch:
            ahead.finish(partial.request)
            return self._finish(partial)

        finisher = _Finisher(finish)
        pid = os.getpid()
        num_ready: int | None = None

        def is_next_ready() -> bool:
            return bool(pending) and pending[0].whole.done()

        try:
            while True:
                if pid != os.getpid():
                    # A fork has no threads: start some, and load the pending batches again.
                    pid = os.getpid()
                    finisher = _Finisher(finish)
                    lost = [waiting.partial.request for waiting in pending]
                    pending.clear()
                    pending.extend(self._submit(request, finisher) for request in lost)
                # Ready batches are counted from the oldest on; each is looked at until it is ready.
                while num_ready is not None and num_ready < len(pending):
                    if not pending[num_ready].whole.done():
                        break
                    num_ready += 1
                self._grow(pending)
                self._fill(pending, ahead, finisher, leave=0)
                if not pending:
                    ahead.raise_error()
                    return
                batch = self._wait(pending[0])
                pending.popleft()
                self._bound.made(batch)
                batch.num_ready = num_ready
                batch.is_next_ready = is_next_ready
                num_ready = max(0, (num_ready or 0) - 1)
                self._adapt()
                # The first batch shows how large they are: prefetch more before the caller asks.
                self._fill(pending, ahead, finisher, leave=1)
                yield batch
        except StallError:
            # A thread is stuck: the next run starts others, and close() does not wait for it.
            self._end(timeout_s=0.0)
            raise
        finally:
            self._bound.ended()
            finisher.end()
            for waiting in pending:
                waiting.cancel()
            ahead.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the threads: a copy starts its own."""
        return {**self.__dict__, "_pools": {}}

    def close(self) -> None:
        """End the threads, after the chunks that they load now."""
        self._end(timeout_s=None)

    def _end(self, *, timeout_s: float | None) -> None:
        pools, self._pools = self._pools, {}
        if self._pid == os.getpid():
            for pool in pools.values():
                pool.close(timeout_s=timeout_s)

    def _finish(self, partial: PartialBatch) -> Batch:
        batch = self.builder.finish(partial)
        batch.num_bytes = batch_bytes(batch)
        self.builder.prepare(batch)
        return batch

    def _fill(
        self,
        pending: deque[_Pending],
        requests: Iterator[BatchRequest],
        finisher: _Finisher,
        *,
        leave: int,
    ) -> None:
        """Start batches up to the prefetch depth; `leave` less, unless bytes bound it.

        One at least; a slow sampler then holds no batch back that is finished.
        """
        while len(pending) < self._bound.depth(self._num_prefetch, leave=leave):
            request = next(requests, None)
            if request is None:
                return
            pending.append(self._submit(request, finisher))
            self._bound.begun(pending[-1].partial)
            if pending[0].whole.done():
                return

    def _grow(self, pending: deque[_Pending]) -> None:
        if pending and len(pending) >= self._bound.depth(self._num_prefetch, leave=1):
            num_left = sum(not future.done() for each in pending for _, future in each.chunks)
            is_late = not pending[0].whole.done()
            self._bound.growth.asked(is_late=is_late, is_idle=num_left < self._num_active)

    def _adapt(self) -> None:
        """Choose how many threads are active from now on."""
        if self.is_fixed or self.num_threads == 1:
            return
        before, self._num_waits = self._num_waits, IO_COUNTS.waits
        self._blocked_share *= _DECAY
        self._blocked_share += (1 - _DECAY) * (self._num_waits > before)
        if self._blocked_share > _MOSTLY_BLOCKED:
            self._num_active = self.num_threads
        elif self._blocked_share < _SELDOM_BLOCKED:
            self._num_active = 1

    def _submit(self, request: BatchRequest, finisher: _Finisher) -> _Pending:
        # Threads do not survive a fork: a child makes its own.
        if self._pid != os.getpid():
            self._pools, self._pid = {}, os.getpid()
        partial = self.builder.begin(request)
        ranges = chunk_ranges(
            len(request.ids),
            self._num_active,
            samples=self.builder.dataset,
            row_bytes=self._bound.row_bytes,
        )
        which = num_threads = self._num_active
        if self._bound.row_bytes and self._bound.depth(self._num_prefetch) == 1:
            # Large batches, one in progress at a time: more threads than chunks would only take
            # turns, and each that decoded 4K video keeps up to 64 MB of freed memory.
            which, num_threads = _FOR_LARGE, min(num_threads, len(ranges))
        pool = self._pools.get(which)
        if pool is None:
            pool = ThreadPool(num_threads, name="shardwise", niceness=_NICENESS)
            self._pools[which] = pool
        pool.grow(num_threads)
        fill, advance = self.builder.fill, finisher.advance
        chunks = [
            (start, pool.submit(fill, partial, start, stop, then=advance)) for start, stop in ranges
        ]
        pending = _Pending(partial, chunks)
        finisher.add(pending)
        if pending.is_filled():
            # Filled by threads that did not find it: one of them finishes it, not this one.
            pool.submit(advance, then=advance)
        return pending

    def _wait(self, pending: _Pending) -> Batch:
        """Wait for a batch; the first chunk that failed raises its error."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        awaited: list[tuple[int, Future[Any]]] = [*pending.chunks, (0, pending.whole)]
        for start, future in awaited:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                result = future.result(left)
            except FutureTimeoutError:
                if future.done():
                    raise  # the chunk itself raised a TimeoutError
                assert self.timeout is not None
                raise stall_error(
                    self.builder.dataset, pending.partial.request, start, self.timeout, "a thread"
                ) from None
            except CancelledError:
                raise RuntimeError("the loader was closed while a batch was awaited") from None
        batch: Batch = result
        return batch
