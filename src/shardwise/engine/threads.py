"""Threads: pieces of a window of batches are shared among the threads of one pool.

Work is cut into pieces of 16 to 64 rows, so that several threads fill one batch and the first one
comes soon; batches are handed out in order from a window that is bounded in batches and in bytes.
Decoders that release the GIL run side by side. No thread ever waits for another: only the
consumer waits, for the oldest batch.

Where there is no decoder, threads take the GIL from each other and get less done than one alone,
as long as nothing has to be waited for: then one works, and the others join in where reads wait.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from shardwise.engine.batch.builder import BatchMaker
from shardwise.engine.batch.partial_batch import Draft
from shardwise.engine.batch.prefetch import piece_ranges, stall_error, window_size
from shardwise.engine.concurrency import Hands
from shardwise.engine.request import Batch, Work
from shardwise.engine.thread_pool import ThreadPool
from shardwise.errors import StallError
from shardwise.storage import IO_COUNTS

__all__ = ["ThreadExecutor"]

# The share of the last batches, some ten, whose reads had to wait: above it all threads work,
# below the other one works again.
_OFTEN, _SELDOM = 0.5, 0.1
_MEMORY = 0.9


@dataclass(slots=True)
class _Pending:
    """A batch under way and the futures of its pieces."""

    draft: Draft
    pieces: list[tuple[int, Future[None]]]

    def is_filled(self) -> bool:
        return all(future.done() for _, future in self.pieces)

    def cancel(self) -> None:
        for _, future in self.pieces:
            future.cancel()


class ThreadExecutor:
    """Makes batches with a pool of threads.

    Args:
        maker: makes the batches.
        num_threads: threads of the pool.
        num_prefetch: batches that may be ready or under way when all work.
        is_fixed: whether all threads work, also where one would do.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        num_threads: int,
        num_prefetch: int,
        is_fixed: bool = True,
        timeout: float | None = None,
    ) -> None:
        self.maker = maker
        self.num_threads = num_threads
        self.num_prefetch = num_prefetch
        self.timeout = timeout
        # By the number of their threads.
        self._pools: dict[int, ThreadPool] = {}
        self._pid = 0
        self._is_fixed = is_fixed or num_threads == 1
        self._num_active = num_threads if self._is_fixed else 1
        self._num_waits = 0
        self._waiting = 0.0

    @property
    def hands(self) -> Hands:
        """The threads that work now."""
        return Hands("threads", num_threads=self._num_active, num_prefetch=self._prefetch)

    @property
    def _prefetch(self) -> int:
        return max(2, self.num_prefetch * self._num_active // self.num_threads)

    def run(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        """Yield one batch for each work, in order; the window fills at the first `next`."""
        pending: deque[_Pending] = deque()
        window = self._prefetch
        pid = os.getpid()
        num_ready: int | None = None
        try:
            while True:
                if pid != os.getpid():
                    # The threads stayed with the parent: a forked child makes the batches itself.
                    pid = os.getpid()
                    pending = deque(self._submit(waiting.draft.work) for waiting in pending)
                # From the oldest on, and each batch looked at once when it is filled.
                while num_ready is not None and num_ready < len(pending):
                    if not pending[num_ready].is_filled():
                        break
                    num_ready += 1
                while len(pending) < window:
                    work = next(works, None)
                    if work is None:
                        break
                    pending.append(self._submit(work))
                    window = window_size(self._prefetch, pending[-1].draft.rows)
                if not pending:
                    return
                self._wait(pending[0])
                batch = self.maker.finish(pending.popleft().draft)
                batch.num_ready = num_ready
                num_ready = max(0, (num_ready or 0) - 1)
                self._choose()
                yield batch
        except StallError:
            # A thread is stuck: the next run has others, and close() does not wait for it.
            self._end(patience_s=0.0)
            raise
        finally:
            for waiting in pending:
                waiting.cancel()

    def __getstate__(self) -> dict[str, Any]:
        """Threads stay behind: whoever unpickles this starts its own."""
        return {**self.__dict__, "_pools": {}}

    def close(self) -> None:
        """End the threads, after the pieces that they have begun."""
        self._end(patience_s=None)

    def _end(self, *, patience_s: float | None) -> None:
        pools, self._pools = self._pools, {}
        if self._pid == os.getpid():
            for pool in pools.values():
                pool.close(patience_s=patience_s)

    def _choose(self) -> None:
        """Look how many threads should work from now on."""
        if self._is_fixed:
            return
        before, self._num_waits = self._num_waits, IO_COUNTS.waits
        self._waiting *= _MEMORY
        self._waiting += (1 - _MEMORY) * (self._num_waits > before)
        if self._waiting > _OFTEN:
            self._num_active = self.num_threads
        elif self._waiting < _SELDOM:
            self._num_active = 1

    def _submit(self, work: Work) -> _Pending:
        # Threads do not survive a fork: a child makes its own.
        if self._pid != os.getpid():
            self._pools, self._pid = {}, os.getpid()
        pool = self._pools.get(self._num_active)
        if pool is None:
            pool = self._pools[self._num_active] = ThreadPool(self._num_active, name="shardwise")
        draft = self.maker.begin(work)
        ranges = piece_ranges(
            len(work.ids),
            self._num_active,
            light_row_bytes=self.maker.dataset.cost.row_bytes,
            reads_at_once=self.maker.dataset.cost.batch_is_one_request,
        )
        pieces = [
            (start, pool.submit(self.maker.fill, draft, start, stop)) for start, stop in ranges
        ]
        return _Pending(draft, pieces)

    def _wait(self, pending: _Pending) -> None:
        """Wait for all pieces of a batch; the first piece that failed raises its error."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        for start, future in pending.pieces:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                future.result(left)
            except FutureTimeoutError:
                if future.done():
                    raise  # the piece itself raised a TimeoutError
                assert self.timeout is not None
                raise stall_error(
                    self.maker.dataset, pending.draft.work, start, self.timeout, "a thread"
                ) from None
            except CancelledError:
                raise RuntimeError("the loader was closed while a batch was awaited") from None
