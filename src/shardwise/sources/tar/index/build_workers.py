"""Threads and processes that index shards; Ctrl-C and the death of the parent end them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from shardwise.errors import WorkerError

__all__ = ["in_processes", "in_threads"]

T = TypeVar("T")


def in_threads(work: Callable[[str], T], urls: Sequence[str], jobs: int) -> Iterator[T]:
    """Results in the order of completion."""
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="shardwise-index")
    try:
        for future in as_completed([pool.submit(work, url) for url in urls]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_processes(work: Callable[[str], T], urls: Sequence[str], jobs: int) -> Iterator[T]:
    """Results in the order of completion. Spawned: a fork of a process with threads may hang.

    Raises:
        WorkerError: a process died.
    """
    pool = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        with _interrupts_blocked():
            futures = [pool.submit(work, url) for url in urls]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise WorkerError(
            "an indexing process died; what is done is kept, so run it again. A script that calls "
            "this needs `if __name__ == '__main__':` around it, and jobs=1 works without processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT while workers start, and in them until `_start_worker`.

    Ctrl-C goes to the whole process group, and a worker that is still importing would answer it
    with a traceback. This process receives it at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Let Ctrl-C end this worker at once and silently: its parent reports it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with_parent()


def _end_with_parent() -> None:
    """End this worker when its parent has died: an orphan would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="shardwise-parent-watch", daemon=True).start()
