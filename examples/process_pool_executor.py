"""An executor of your own: batches built by the processes of `concurrent.futures`.

An executor has three members: `run(requests)` yields a batch for each request, in order; `close()`
ends what `run` started; `concurrency` is for `loader.stats()`. The loader makes it with a
`BatchBuilder`, which has the dataset and the seed: a pickled copy builds the same batches in any
process. A request has the epoch, the step and the ids of the samples. So an executor only decides
where `builder.build(request)` runs: a cluster's job queue takes the place of the pool here.

    python examples/process_pool_executor.py
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import shardwise as sw
from shardwise.executors import (
    Batch,
    BatchBuilder,
    BatchRequest,
    Concurrency,
    StallError,
    WorkerError,
    pickle_by_value,
)
from shardwise.testing import check_executor

# Processes are forked from a server without threads, which has imported this already.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["shardwise.executors", "shardwise.testing"])
# In a worker process: its copy of the loader's builder.
_builders: list[BatchBuilder] = []


def _load_builder(pickled: bytes) -> None:
    _builders.append(pickle.loads(pickled))


def _build(request: BatchRequest) -> Batch:
    return _builders[0].build(request)


class PoolExecutor:
    """Builds batches in a process pool.

    Args:
        builder: builds a batch from a request; given by the loader.
        num_workers: processes; the loader passes its own option on.
        timeout: seconds to wait for one batch; the loader passes its own option on.
    """

    def __init__(
        self, builder: BatchBuilder, *, num_workers: int = 2, timeout: float | None = None
    ) -> None:
        self._builder = builder
        self._timeout = timeout
        self._pool: ProcessPoolExecutor | None = None
        self.concurrency = Concurrency(
            "pool", num_workers=num_workers, num_threads=1, num_prefetch=2 * num_workers
        )

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        """Yield one batch for each request, in order."""
        pending: deque[Future[Batch]] = deque()
        try:
            while True:
                while len(pending) < self.concurrency.num_prefetch:
                    request = next(requests, None)
                    if request is None:
                        break
                    pending.append(self._start().submit(_build, request))
                if not pending:
                    return
                # The batch, or the error of its sample.
                yield pending.popleft().result(self._timeout)
        except BrokenProcessPool as error:
            self.close()  # the next run starts other processes
            raise WorkerError(f"a process of the pool ended: {error}") from error
        except TimeoutError as error:
            raise StallError(f"no batch for {self._timeout} s; raise timeout=") from error
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the pool: a copy starts its own."""
        return {**self.__dict__, "_pool": None}

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.concurrency.num_workers,
                mp_context=_CONTEXT,
                initializer=_load_builder,
                initargs=(pickle_by_value(self._builder),),
            )
        return self._pool


if __name__ == "__main__":
    check_executor(PoolExecutor)

    data = sw.wrap([{"x": [i, i * i]} for i in range(100)])
    with sw.DataLoader(data, 8, shuffle=True, executor=PoolExecutor, num_workers=2) as loader:
        for batch in loader:
            print(batch["__index__"].tolist())
        print(loader.certificate()["verdict"])
