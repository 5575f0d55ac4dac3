"""The executor of worker processes: they share the row chunks of several batches.

The trainer sends tasks on one socket, from which any free worker takes the next. Rows of a fixed
shape are written into anonymous memory that both have mapped, everything else travels in messages.
Workers are fresh interpreters, never forks of the trainer. The processes share no lock and no
barrier: a worker that dies is an error here (`WorkerError`), never a wait. With a
`decode_timeout`, a worker whose decoder does not return is stopped, and its chunks are loaded again
by others. Batches are bit by bit those of the inline executor (I5).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwise.base.errors import DecodeTimeoutError, StallError, WorkerError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES, PrefetchBound
from shardwise.engine.processes.run import Run
from shardwise.engine.processes.session import Session
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.request import Batch, BatchRequest, Concurrency


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
        run = Run(self, session, requests)
        try:
            yield from run.batches()
        except (WorkerError, StallError) as error:
            # A process is gone or stuck: the next run starts new ones. After a DecodeTimeoutError
            # it was replaced: waiting for the end of one that starts would delay the error.
            if self._session is session and not isinstance(error, DecodeTimeoutError):
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
