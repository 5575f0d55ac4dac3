"""Assign the shards of a build to any workers, and once more if one of them died.

`Workers` is what processes of this machine and a Ray cluster have in common. It knows numbers of
shards; which are to be made, their order and the end of a build are decided here and above, once.

On this machine workers are spawned processes, threads, or this process itself. Samples that are
copied as they stand are copied by threads: reading and writing release the GIL, and a process takes
0.3 CPU seconds to start, in which a thread copies 500 MB.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context, parent_process
from typing import Any, Protocol

from shardwise.base.errors import WorkerError
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.extensions.build.place import Place
from shardwise.extensions.build.shard import Job, make_shard

# Shards that are submitted beyond those that are being made: no worker waits.
AHEAD = 2
# Workers that may die of one shard.
_MAX_DEATHS = 5


class WorkerDiedError(Exception):
    """The maker of a shard is gone, by a kill, for lack of memory, or with its machine."""


class Workers(Protocol):
    """Makes shards of one build, several at a time."""

    @property
    def limit(self) -> int:
        """Shards to have under way at most, at least 1."""
        ...

    @property
    def advice(self) -> str:
        """The advice for when workers die again and again."""
        ...

    def submit(self, number: int) -> None:
        """Start a shard; called while less than `limit` are under way."""
        ...

    def wait(self) -> dict[int, BaseException | None]:
        """Wait for a shard at least: those that ended, with their errors or `WorkerDiedError`."""
        ...


def hand_out(
    workers: Workers, numbers: Sequence[int], *, is_done: Callable[[int], bool]
) -> Iterator[int]:
    """Make shards, in any order; yield the number of each as it is done."""
    todo, num_running, deaths = deque(numbers), 0, Counter[int]()
    while todo or num_running:
        while todo and num_running < workers.limit:
            workers.submit(todo.popleft())
            num_running += 1
        results = workers.wait()
        num_running -= len(results)
        lost = {}
        for number, error in results.items():
            if isinstance(error, WorkerDiedError):
                lost[number] = error
            elif error is None:
                yield number
        for error in results.values():
            if error is not None and not isinstance(error, WorkerDiedError):
                raise error
        for number in sorted(lost, reverse=True):
            if is_done(number):
                yield number
            else:
                deaths[number] += 1
                todo.appendleft(number)
        _refuse_deaths(lost, deaths, workers.advice)


def _refuse_deaths(lost: dict[int, WorkerDiedError], deaths: Counter[int], advice: str) -> None:
    fatal = sorted(number for number in lost if deaths[number] >= _MAX_DEATHS)
    if not fatal:
        return
    names = ", ".join(map(str, fatal))
    raise WorkerError(
        f"build: worker processes died {_MAX_DEATHS} times while they made shard {names} "
        f"({lost[fatal[0]]}): {advice}"
    )


@contextmanager
def local_workers(job: Job, num_workers: int) -> Iterator[Workers]:
    """Workers until the block ends; shards that are being made then are finished."""
    if not num_workers:
        yield _ThisProcess(job)
        return
    workers = _Pool(job, num_workers)
    try:
        yield workers
    finally:
        workers.close()


class _ThisProcess:
    limit = 1
    advice = ""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done: dict[int, BaseException | None] = {}

    def submit(self, number: int) -> None:
        make_shard(self._job, number)
        self._done[number] = None

    def wait(self) -> dict[int, BaseException | None]:
        done, self._done = self._done, {}
        return done


class _Pool:
    """A pool of threads or processes. A process that dies takes it down, and a new one follows."""

    def __init__(self, job: Job, num_workers: int) -> None:
        self.limit = num_workers + AHEAD
        self.advice = ""
        self._make: Callable[[int], object] = partial(make_shard, job)
        self._start: Callable[[], Executor] = partial(
            ThreadPoolExecutor, num_workers, thread_name_prefix="shardwise-build"
        )
        if not job.copies():
            self.advice = (
                'a script must call it under `if __name__ == "__main__":`; if it does, the memory '
                f"may be too small: use less than num_workers={num_workers}"
            )
            self._make = _make
            self._start = partial(
                ProcessPoolExecutor,
                num_workers,
                mp_context=get_context("spawn"),
                initializer=_start,
                initargs=(pickle_by_value(job), job.place, job.token, os.getpid()),
            )
        self._pool: Executor | None = None
        self._running: dict[Future[object], int] = {}

    def submit(self, number: int) -> None:
        self._pool = self._pool or self._start()
        try:
            future = self._pool.submit(self._make, number)
        except BrokenProcessPool as error:
            # It has died since the last wait.
            future = Future()
            future.set_exception(error)
        self._running[future] = number

    def wait(self) -> dict[int, BaseException | None]:
        done, others = wait(self._running, return_when=FIRST_COMPLETED)
        if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
            # All others end with this error, too.
            done |= wait(others).done
            self.close()
        results: dict[int, BaseException | None] = {}
        for future in done:
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                error = WorkerDiedError("a process of this machine ended abruptly")
            results[self._running.pop(future)] = error
        return results

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class _State:
    def __init__(self) -> None:
        self.pickled = b""
        self.job: Job | None = None
        self.joined: Any = None


_WORKER = _State()


def _start(pickled: bytes, place: Place, token: str, parent: int) -> None:
    """Start a worker: it ends with its builder, however that ends."""
    _WORKER.joined = place.join(token)
    _WORKER.pickled = pickled
    builder = parent_process()
    if builder is None or os.getppid() != parent:
        os._exit(1)
    watch = threading.Thread(target=_end_with, args=(builder.sentinel,), daemon=True)
    watch.start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _make(number: int) -> None:
    if _WORKER.job is None:
        # Not in the initializer: what a function's module raises is then raised to the user.
        _WORKER.job = pickle.loads(_WORKER.pickled)  # noqa: S301 - bytes of the builder itself
    make_shard(_WORKER.job, number)
