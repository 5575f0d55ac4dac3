"""The thread that speaks to stores: one event loop a process, for all files and all callers.

obstore's own threads do not survive a fork: whatever is asked of it in a forked child waits for
ever, if it was used in the parent. So the process that used it first is remembered, and its
children are told what to do at once. At the interpreter's end the thread is ended, and obstore's
threads are waited for. Imports the errors and `shardwise.storage.requests.obstore_exit`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from shardwise.errors import StorageError
from shardwise.storage.requests.obstore_exit import ObstoreCalls

__all__ = ["Runtime", "give_up_reads", "is_cut_off", "runtime"]

T = TypeVar("T")

# At the interpreter's end requests in flight are given up; their native side needs a moment.
_PATIENCE_S = 5.0
_MOST_SHARED = 1024


class Runtime:
    """An event loop in a thread of its own, and what files share in this process.

    Everything in `shared` is made and used in that thread only, so it needs no locks.

    Attributes:
        native: follows the calls of obstore.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.shared: dict[Hashable, Any] = {}
        self.native = ObstoreCalls()
        self.loop = asyncio.new_event_loop()
        self._is_ended = False
        # By thread: each waits for one piece of work at most.
        self._watches: dict[int, _Watch] = {}
        # Whatever is handed to the loop is handed to it before it is told to end.
        self._handing = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="shardwise-storage", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work in the loop's thread, and wait for its result.

        An exception in the waiting thread (Ctrl-C) ends the work first: nothing is written into
        the caller's buffers behind its back.
        """
        watch = self._watches[threading.get_ident()] = _Watch(self.loop)
        try:
            with self._handing:
                done = self._begin(watch.over(work))
            return done.result()
        except CancelledError:
            work.close()
            why = "the interpreter is ending" if self._is_ended else "its reader was closed"
            raise StorageError(f"nothing is read any more: {why}") from None
        except BaseException:
            watch.stop()
            raise
        finally:
            self._watches.pop(threading.get_ident(), None)

    def give_up(self, thread: int) -> None:
        """End what a thread (its identifier) waits for in `run`, if it does: StorageError there."""
        watch = self._watches.get(thread)
        if watch is not None and not self._is_ended:
            self.post(watch.cancel)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._is_ended:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        done: Future[T] = Future()
        done.cancel()
        return done

    def post(self, work: Callable[[], object]) -> None:
        """Have some work done in the loop's thread, without waiting for it."""
        with self._handing:
            if not self._is_ended:
                self.loop.call_soon_threadsafe(work)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is shared under a key, made if it is not there. In the loop's thread only.

        What was not asked for in a long time is forgotten: each signed URL is a store of its own.
        """
        found: T = self.shared.pop(key) if key in self.shared else make()
        self.shared[key] = found
        while len(self.shared) > _MOST_SHARED:
            del self.shared[next(iter(self.shared))]
        return found

    def end(self) -> None:
        """Give up what is in flight, and stop. A forked child leaves its parent's alone."""
        if self.pid != os.getpid():
            return
        with self._handing:
            if self._is_ended:
                return
            self._is_ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * _PATIENCE_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        while tasks := asyncio.all_tasks(self.loop):
            self.loop.run_until_complete(_cancel(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        # A loop that obstore may still hand a result to is left open.
        if self.loop.run_until_complete(self.native.settle(_PATIENCE_S)):
            self.loop.close()


class _Watch:
    """Some work, which can be ended from another thread at any moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._is_stopped = False
        self._ended = threading.Event()

    async def over(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, unless it was ended before it began."""
        if self._is_stopped:
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await work
        finally:
            self._ended.set()

    def stop(self) -> None:
        """End the work, begun or not, and wait until it is over."""
        if not self._ended.is_set():
            # A loop that is closed has ended all work.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.cancel)
                self._ended.wait(_PATIENCE_S)

    def cancel(self) -> None:
        """End the work, in the loop's thread."""
        self._is_stopped = True
        if self._task is None:
            self._ended.set()
        else:
            self._task.cancel()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Process:
    """The runtime of this process: the one thing here that belongs to the process as a whole.

    Attributes:
        current: the runtime, maybe of the process that this one was forked from.
        obstore_pid: the process that used obstore first: this one or one that it was forked from.
    """

    current: Runtime | None = None
    obstore_pid: int | None = None
    lock = threading.Lock()


def runtime(*, obstore: bool) -> Runtime:
    """The runtime of this process, begun at the first call.

    Args:
        obstore: whether it is wanted for obstore.

    Raises:
        StorageError: this is a forked child, and its parent has used obstore.
    """
    pid = os.getpid()
    if obstore and _Process.obstore_pid != pid:
        if _Process.obstore_pid is not None:
            raise StorageError(
                f"process {pid} was forked from process {_Process.obstore_pid}, which had read "
                "from an object store before: the store's client does not survive a fork. Start "
                "such processes with 'spawn' or 'forkserver' (torch: DataLoader(..., "
                "multiprocessing_context='spawn')), or use remote data in the child only"
            )
        _Process.obstore_pid = pid
    found = _Process.current
    if found is None or found.pid != pid:
        if found is not None:
            # Another thread of the parent may have held it at the fork.
            _Process.lock, _Process.current = threading.Lock(), None
        with _Process.lock:
            found = _Process.current
            if found is None:
                found = _Process.current = Runtime()
                atexit.register(found.end)
    return found


def give_up_reads(thread: int) -> None:
    """End what a thread (its identifier) waits for from a store: StorageError there."""
    found = _Process.current
    if found is not None and found.pid == os.getpid():
        found.give_up(thread)


def is_cut_off() -> bool:
    """Whether this is a forked child whose parent has used obstore: then it can't use it."""
    return _Process.obstore_pid not in (None, os.getpid())
