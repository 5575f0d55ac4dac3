"""The event loop of a process, in its own thread, for all files and all callers.

obstore's own threads do not survive a fork: in a child of a process that used it, its calls wait
for ever. So the first process that uses it is recorded, and its children get an error at once. At
the interpreter's exit the thread is ended, and obstore's threads are waited for (`ObstoreCalls`).
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from shardwise.base.counters import CANCELLERS
from shardwise.base.errors import StorageError

T = TypeVar("T")

# At the interpreter's exit, cancelled requests have 5 s to leave obstore.
_EXIT_S = 5.0
_MAX_SHARED = 1024
# A wait ends after this time and starts again: before its end, Python does not see a signal that
# another thread received, or that came as the wait started.
_SIGNAL_S = 1.0


class Runtime:
    """An event loop in its own thread, and what files share in this process.

    Everything in `shared` is made and used in that thread only, so it needs no locks.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.shared: dict[Hashable, Any] = {}
        self.native = ObstoreCalls()
        self.loop = asyncio.new_event_loop()
        self._is_ended = False
        # One entry per thread: each waits for one coroutine at most.
        self._running: dict[int, _Cancellable] = {}
        # Submissions to the loop all come before its end. Reentrant: a garbage collection in the
        # middle of one may close a file, which submits as well.
        self._submitting = threading.RLock()
        self._thread = threading.Thread(target=self._serve, name="shardwise-storage", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread, and wait for its result.

        An exception in the waiting thread (Ctrl-C) ends the coroutine first.
        """
        cancellable = self._running[threading.get_ident()] = _Cancellable(self.loop)
        try:
            future = self.start(cancellable.over(work))
            while not future.done():
                with suppress(TimeoutError):
                    future.result(_SIGNAL_S)
            return future.result()
        except CancelledError:
            work.close()
            why = "the interpreter is ending" if self._is_ended else "its reader was closed"
            raise StorageError(f"nothing is read any more: {why}") from None
        except BaseException:
            cancellable.stop()
            raise
        finally:
            self._running.pop(threading.get_ident(), None)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop's thread; its result later."""
        with self._submitting:
            if not self._is_ended:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        done: Future[T] = Future()
        done.cancel()
        return done

    def give_up(self, thread: int) -> None:
        """Cancel the `run` of a thread (its identifier), if it waits in one: StorageError there."""
        cancellable = self._running.get(thread)
        if cancellable is not None and not self._is_ended:
            self.post(cancellable.cancel)

    def post(self, work: Callable[[], object]) -> None:
        """Call a function in the loop's thread, without waiting for it."""
        with self._submitting:
            if not self._is_ended:
                self.loop.call_soon_threadsafe(work)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The shared object of a key, made at the first call. In the loop's thread only.

        Only the 1,024 last used are kept: each signed URL is a separate store.
        """
        value: T = self.shared.pop(key) if key in self.shared else make()
        self.shared[key] = value
        while len(self.shared) > _MAX_SHARED:
            del self.shared[next(iter(self.shared))]
        return value

    def end(self) -> None:
        """Cancel all requests, and stop. Does nothing in a forked child."""
        if self.pid != os.getpid():
            return
        with self._submitting:
            if self._is_ended:
                return
            self._is_ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * _EXIT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        while tasks := asyncio.all_tasks(self.loop):
            self.loop.run_until_complete(cancel(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        # A loop that obstore may still call is left open.
        if self.loop.run_until_complete(self.native.settle(_EXIT_S)):
            self.loop.close()


class _Cancellable:
    """A coroutine that other threads may cancel at any moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._is_stopped = False
        self._ended = threading.Event()

    async def over(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it, unless it was cancelled before."""
        if self._is_stopped:
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await work
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Cancel it, started or not, and wait until it is over."""
        if not self._ended.is_set():
            # A closed loop has ended all coroutines.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.cancel)
                self._ended.wait(_EXIT_S)

    def cancel(self) -> None:
        """Cancel it, in the loop's thread."""
        self._is_stopped = True
        if self._task is None:
            self._ended.set()
        else:
            self._task.cancel()


async def cancel(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Process:
    # The runtime of this process, or of a parent before a fork.
    current: Runtime | None = None
    # The first process that used obstore: this one or a parent before a fork.
    obstore_pid: int | None = None
    lock = threading.Lock()


def runtime(*, obstore: bool) -> Runtime:
    """The runtime of this process, started at the first call.

    Raises:
        StorageError: obstore will be used, in a forked child whose parent has used it.
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
    current = _Process.current
    if current is None or current.pid != pid:
        if current is not None:
            # Another thread of the parent may have locked it at the fork.
            _Process.lock, _Process.current = threading.Lock(), None
        with _Process.lock:
            current = _Process.current
            if current is None:
                current = _Process.current = Runtime()
                atexit.register(current.end)
    return current


def give_up_reads(thread: int) -> None:
    """Cancel the request that a thread (its identifier) waits for: StorageError there."""
    current = _Process.current
    if current is not None and current.pid == os.getpid():
        current.give_up(thread)


CANCELLERS.append(give_up_reads)


def is_cut_off() -> bool:
    """Whether this is a forked child that can't use obstore because its parent has used it."""
    return _Process.obstore_pid not in (None, os.getpid())


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the others, then is raised by itself.

    asyncio.TaskGroup would raise an exception group, which readers of single files don't expect.
    """
    all_of_them = list(coroutines)
    if len(all_of_them) == 1:
        return [await all_of_them[0]]
    tasks = list(map(asyncio.ensure_future, all_of_them))
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel(tasks)
        raise


_PAUSE_S = 0.001
# A call in a reference cycle (an exception that a user keeps) needs a collection.
_COLLECT_AFTER_S = 0.1


class ObstoreCalls:
    """The calls of obstore that may still be under way. Used in the event loop's thread.

    At the end of a call, a thread of obstore's enters Python to pass the result to the event loop,
    which may continue before that thread has left again. CPython kills foreign threads that ask for
    the interpreter while it is torn down; inside obstore, that aborts the process. And obstore
    prints an error if the loop is closed when the result of a cancelled call arrives. So each call
    is tracked until obstore has released it.
    """

    def __init__(self) -> None:
        self._calls: weakref.WeakSet[Awaitable[Any]] = weakref.WeakSet()

    async def result(self, call: Awaitable[T]) -> T:
        """The result of a call (an asyncio future), tracked until obstore has released it."""
        self._calls.add(call)
        try:
            return await call
        except Exception as error:
            # The type can't be imported; a malformed setting makes obstore panic.
            if type(error).__name__ == "RustPanic":
                raise OSError("obstore gave up: is one of the settings malformed?") from None
            raise
        finally:
            # Or an error's traceback would keep it alive.
            del call

    async def settle(self, seconds: float) -> bool:
        """Wait until obstore has released all calls; False if it takes longer than `seconds`.

        The event loop must run meanwhile: it takes the results of cancelled calls.
        """
        if not self._calls:
            return True
        from obstore.store import MemoryStore

        began = time.monotonic()
        is_collected = False
        while True:
            # Its threads release Python objects without the GIL: they are counted down at the next
            # call of obstore.
            MemoryStore()
            if not self._calls:
                return True
            waited_s = time.monotonic() - began
            if waited_s > seconds:
                return False
            if waited_s > _COLLECT_AFTER_S and not is_collected:
                is_collected = True
                gc.collect()
            await asyncio.sleep(_PAUSE_S)
