"""Threads that take tasks from a queue, and that nobody has to wait for.

The standard pool's threads are joined when the interpreter ends: one that is stuck in a read for
ever would keep a program from ending after `StallError`. These are daemons; at the end they are
given a moment to leave the C code that they are in.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from shardwise.storage import give_up_reads

__all__ = ["ThreadPool"]

# What a decoder takes for what it has begun; threads that take longer are left behind.
_PATIENCE_S = 5.0
# Between two looks whether a thread that is to end waits for a store.
_LOOK_S = 0.05

_Task = tuple[Future[None], Callable[..., None], tuple[Any, ...]]


class ThreadPool:
    """A fixed number of threads.

    Args:
        num_threads: how many.
        name: what they are called, with a number behind.
    """

    def __init__(self, num_threads: int, *, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}_{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        # A pool that is dropped ends its threads; so does the interpreter's end, and waits a bit.
        self._end = weakref.finalize(self, _end, os.getpid(), self._tasks, self._threads)

    def submit(self, function: Callable[..., None], *args: Any) -> Future[None]:
        """Put up a call; the future knows when it is done and what it raised."""
        future: Future[None] = Future()
        self._tasks.put((future, function, args))
        return future

    def close(self, *, patience_s: float | None = None) -> None:
        """Cancel what has not begun, and wait for what has.

        Args:
            patience_s: for so long at most; None for as long as it takes.
        """
        if self._end.detach() is not None:
            _end(os.getpid(), self._tasks, self._threads, patience_s)


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function, args = task
        if future.set_running_or_notify_cancel():
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is read
                future.set_exception(error)
            else:
                future.set_result(None)
        # A thread that waits for its next task must not hold on to the last one's data.
        del task, future, function, args


def _end(
    pid: int,
    tasks: SimpleQueue[_Task | None],
    threads: list[threading.Thread],
    patience_s: float | None = _PATIENCE_S,
) -> None:
    if pid != os.getpid():
        return  # a forked child has none of these threads
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if task is not None:
            task[0].cancel()
    for _ in threads:
        tasks.put(None)
    deadline = None if patience_s is None else time.monotonic() + patience_s
    for thread in threads:
        # A pool may be dropped by one of its own threads.
        if thread is threading.current_thread():
            continue
        while thread.is_alive() and (deadline is None or time.monotonic() < deadline):
            # A store that is away may be waited for for minutes.
            give_up_reads(thread.ident or 0)
            thread.join(_LOOK_S)
