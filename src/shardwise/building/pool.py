"""The processes of a build: shards are handed out, counts come back, dead ones are replaced."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Any

from shardwise.building.place import Place
from shardwise.building.recipe import Outcome
from shardwise.building.shard import Job, make_shard
from shardwise.engine.processes.pickling import pickled_by_value
from shardwise.errors import WorkerError

__all__ = ["made"]

# Pools that may die one after the other without a shard done in between.
_MAX_DEATHS = 5
# Shards that are handed out beyond those that are being made: no worker waits.
_AHEAD = 2


class _State:
    """What a worker process keeps: its build."""

    def __init__(self) -> None:
        self.pickled = b""
        self.job: Job | None = None
        self.joined: Any = None


_WORKER = _State()


def made(
    job: Job, numbers: Sequence[int], *, num_workers: int, is_done: Callable[[int], bool]
) -> Iterator[Outcome]:
    """Make shards, in any order; what became of the inputs of each as it is done.

    Args:
        job: the build.
        numbers: the shards to make.
        num_workers: processes; 0 for this one.
        is_done: whether a shard's note is there, asked after a process died.

    Raises:
        WorkerError: processes die again and again.
        DataError: as `make_shard` says.
        TypeError: a function can't be pickled.
    """
    if not num_workers:
        yield from (make_shard(job, number) for number in numbers)
        return
    pickled = pickled_by_value(job)
    todo, deaths = list(numbers), 0
    while todo:
        left = set(todo)
        pool = ProcessPoolExecutor(
            min(num_workers, len(todo)),
            mp_context=get_context("spawn"),
            initializer=_start,
            initargs=(pickled, job.place, os.getpid()),
        )
        try:
            for number, outcome in _of_pool(pool, todo, num_workers):
                left.discard(number)
                deaths = 0
                yield outcome
        except BrokenProcessPool:
            deaths += 1
            if deaths == _MAX_DEATHS:
                raise WorkerError(
                    f"build: a worker process died, {deaths} times with no shard done between, "
                    f"maybe for lack of memory: use less than num_workers={num_workers}; and if "
                    'the program is a script, call it under `if __name__ == "__main__":`'
                ) from None
        finally:
            pool.shutdown(cancel_futures=True)
        # In their order; a shard may be done whose counts did not arrive.
        todo = [number for number in todo if number in left and not is_done(number)]


def _of_pool(
    pool: ProcessPoolExecutor, numbers: Sequence[int], num_workers: int
) -> Iterator[tuple[int, Outcome]]:
    rest = iter(numbers)
    running: dict[Future[Outcome], int] = {}
    for number in rest:
        running[pool.submit(_make, number)] = number
        if len(running) < num_workers + _AHEAD:
            continue
        yield from _completed(running)
    while running:
        yield from _completed(running)


def _completed(running: dict[Future[Outcome], int]) -> Iterator[tuple[int, Outcome]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    results = [(running.pop(future), future) for future in done]
    failed: BaseException | None = None
    for number, future in results:
        error = future.exception()
        if error is None:
            yield number, future.result()
        elif failed is None or isinstance(failed, BrokenProcessPool):
            failed = error
    if failed is not None:
        raise failed


def _start(pickled: bytes, place: Place, parent: int) -> None:
    """Begin a worker: it ends with its builder, however that ends."""
    _WORKER.joined = place.join()
    _WORKER.pickled = pickled
    builder = parent_process()
    if builder is None or os.getppid() != parent:
        os._exit(1)
    watch = threading.Thread(target=_end_with, args=(builder.sentinel,), daemon=True)
    watch.start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _make(number: int) -> Outcome:
    if _WORKER.job is None:
        # Not in the initializer: what a function's module raises is then raised to the user.
        _WORKER.job = pickle.loads(_WORKER.pickled)  # noqa: S301 - bytes of the builder itself
    outcome = make_shard(_WORKER.job, number)
    # Counts only: the failures are in the shard's note.
    outcome.failures.clear()
    return outcome
