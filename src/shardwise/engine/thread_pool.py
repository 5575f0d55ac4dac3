"""A pool of daemon threads: one that is stuck does not keep the interpreter from ending.

The standard pool's threads are joined when the interpreter ends: a read that never returns would
keep a program from ending after `StallError`. These get 5 s then, to leave the C code that they
are in.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from shardwise.storage import give_up_reads

# At the interpreter's end: a decoder's longest call; slower threads are left behind.
_END_TIMEOUT_S = 5.0
# Interval at which the reads of a thread that is to end are given up.
_POLL_S = 0.05

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """A number of threads that may grow; `niceness` levels below the caller's priority."""

    def __init__(self, num_threads: int, *, name: str, niceness: int = 0) -> None:
        self._name = name
        self._niceness = niceness
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.grow(num_threads)
        # A pool that is dropped ends its threads, and so does the interpreter's end.
        self._end = weakref.finalize(self, _end, os.getpid(), self._tasks, self._threads)

    def grow(self, num_threads: int) -> None:
        for i in range(len(self._threads), num_threads):
            name = f"{self._name}_{i}"
            thread = threading.Thread(
                target=_work, args=(self._tasks, self._niceness), name=name, daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        then: Callable[[Future[Any]], None] | None = None,
    ) -> Future[Any]:
        """Queue a call; its future has its result or error, and `then` is called with it."""
        future: Future[Any] = Future()
        if then is not None:
            future.add_done_callback(then)
        self._tasks.put((future, function, args))
        return future

    def close(self, *, timeout_s: float | None = None) -> None:
        """Cancel the calls that have not started, and wait for those that have."""
        if self._end.detach() is not None:
            _end(os.getpid(), self._tasks, self._threads, timeout_s)


def _work(tasks: SimpleQueue[_Task | None], niceness: int) -> None:
    if niceness and sys.platform == "linux":  # elsewhere threads have no separate priority
        with suppress(OSError):  # some sandboxes forbid it
            this = threading.get_native_id()
            own = os.getpriority(os.PRIO_PROCESS, this)
            os.setpriority(os.PRIO_PROCESS, this, own + niceness)
    while (task := tasks.get()) is not None:
        future, function, args = task
        if future.set_running_or_notify_cancel():
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is read
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # A thread that waits for its next task must not hold on to the last one's data.
        del task, future, function, args


def _end(
    pid: int,
    tasks: SimpleQueue[_Task | None],
    threads: list[threading.Thread],
    timeout_s: float | None = _END_TIMEOUT_S,
) -> None:
    if pid != os.getpid():
        return  # a forked child does not have the threads
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if task is not None:
            task[0].cancel()
    for _ in threads:
        tasks.put(None)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for thread in threads:
        # A pool may be dropped by one of the pool's threads.
        if thread is threading.current_thread():
            continue
        while thread.is_alive():
            # Requests to a store that does not answer are retried for minutes, also where no
            # caller waits for the thread.
            give_up_reads(thread.ident or 0)
            if deadline is not None and time.monotonic() >= deadline:
                break
            thread.join(_POLL_S)
