"""A function of many items, called in threads or in spawned processes: work that is done once.

An error ends it: calls that have not started are cancelled. Ctrl-C and the death of the parent end
the processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from shardwise.base.errors import WorkerError

S = TypeVar("S")
T = TypeVar("T")


def in_threads(
    work: Callable[[S], T],
    items: Sequence[S],
    num_threads: int,
    *,
    is_ordered: bool = True,
) -> Iterator[T]:
    """Results in the order of the items, or else of completion; no items, no threads."""
    if items:
        pool = ThreadPoolExecutor(min(num_threads, len(items)), thread_name_prefix="shardwise-pool")
        yield from _results(pool, nullcontext(), work, items, is_ordered=is_ordered)


def in_processes(
    work: Callable[[S], T],
    items: Sequence[S],
    num_processes: int,
    *,
    if_one_dies: str,
    is_ordered: bool = True,
) -> Iterator[T]:
    """The same in processes. Spawned: a fork of a process with threads may hang.

    Raises:
        WorkerError: a process died; `if_one_dies` is its message.
    """
    context: Any = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, context, initializer=_start_worker)
    try:
        yield from _results(pool, _interrupts_blocked(), work, items, is_ordered=is_ordered)
    except BrokenProcessPool as error:
        raise WorkerError(if_one_dies) from error


def _results(
    pool: Executor,
    starting: AbstractContextManager[None],
    work: Callable[[S], T],
    items: Sequence[S],
    *,
    is_ordered: bool,
) -> Iterator[T]:
    try:
        with starting:
            futures = [pool.submit(work, item) for item in items]
        if is_ordered:
            # A future keeps its result: those of a column would be in memory until the last one.
            futures.reverse()
            while futures:
                yield futures.pop().result()
        for future in as_completed(futures):
            yield future.result()
    finally:
        # An error cancels the calls that have not started, instead of waiting for them.
        pool.shutdown(cancel_futures=True)


@contextmanager
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
    # An orphan would wait for work forever.
    threading.Thread(target=_end_with_parent, name="shardwise-parent-watch", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def usable_cores(*, num_ranks: int = 1) -> int:
    """Cores for each of `num_ranks` processes on this node; at least 1."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    quota = _cgroup_cores(Path("/sys/fs/cgroup"))
    if quota is not None:
        cores = min(cores, quota)
    return max(1, int(cores / max(1, num_ranks)))


def _cgroup_cores(root: Path) -> float | None:
    """The CPU quota of the control group in cores (version 2, then 1); None without a quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", or -1: no quota
    return int(quota) / int(period)
