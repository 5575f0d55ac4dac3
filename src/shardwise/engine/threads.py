"""Threads: pieces of a window of batches are shared among the threads of one pool.

Work is cut into pieces of 16 to 64 rows, so that several threads fill one batch and the first one
comes soon; batches are handed out in order from a window that is bounded in batches and in bytes.
Decoders that release the GIL run side by side. No thread ever waits for another: only the
consumer waits, for the oldest batch.
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

from shardwise.engine.draft import Draft
from shardwise.engine.hands import Hands
from shardwise.engine.maker import BatchMaker
from shardwise.engine.thread_pool import ThreadPool
from shardwise.engine.window import piece_ranges, stall_error, window_size
from shardwise.engine.work import Batch, Work
from shardwise.errors import StallError

__all__ = ["ThreadExecutor"]


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
        num_prefetch: batches that may be ready or under way.
        timeout: seconds that the consumer waits for one batch before `StallError`, or None.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        num_threads: int,
        num_prefetch: int,
        timeout: float | None = None,
    ) -> None:
        self.maker = maker
        self.num_threads = num_threads
        self.num_prefetch = num_prefetch
        self.timeout = timeout
        self._pool: ThreadPool | None = None
        self._pid = 0

    @property
    def hands(self) -> Hands:
        """The threads of the pool."""
        return Hands("threads", num_threads=self.num_threads, num_prefetch=self.num_prefetch)

    def run(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        """Yield one batch for each work, in order; the window fills at the first `next`."""
        pending: deque[_Pending] = deque()
        window = self.num_prefetch
        num_ready: int | None = None
        try:
            while True:
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
                    window = window_size(self.num_prefetch, pending[-1].draft.rows)
                if not pending:
                    return
                self._wait(pending[0])
                batch = self.maker.finish(pending.popleft().draft)
                batch.num_ready = num_ready
                num_ready = max(0, (num_ready or 0) - 1)
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
        return {**self.__dict__, "_pool": None}

    def close(self) -> None:
        """End the threads, after the pieces that they have begun."""
        self._end(patience_s=None)

    def _end(self, *, patience_s: float | None) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close(patience_s=patience_s)

    def _submit(self, work: Work) -> _Pending:
        # Threads do not survive a fork: a child makes its own.
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPool(self.num_threads, name="shardwise")
            self._pid = os.getpid()
        draft = self.maker.begin(work)
        ranges = piece_ranges(
            len(work.ids),
            self.num_threads,
            light_row_bytes=self.maker.dataset.light_row_bytes,
        )
        pieces = [
            (start, self._pool.submit(self.maker.fill, draft, start, stop))
            for start, stop in ranges
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
