"""A worker process: takes tasks from the socket until the trainer is gone.

It is a fresh interpreter, started by `worker_pool.py` with the trainer's module path: no fork of
the trainer, and nothing is inherited but the socket and the files with its job and status. Each of
its threads takes the next task, whatever batch it belongs to. It ends when the socket does, so that
a trainer that is killed leaves no process behind (I8).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StorageError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch, Watching
from shardwise.engine.processes.pickling import Unread
from shardwise.engine.processes.shared_memory import (
    RowLayout,
    map_without_file,
    max_slots,
    write_in_place,
)
from shardwise.engine.processes.slots import SlotPool
from shardwise.engine.processes.tasks import RECEIVE_FAILED, START_FAILED, Answer, Task
from shardwise.engine.processes.transport import (
    Packed,
    message_slots,
    pack,
    receive,
    send,
    unpack_file,
)
from shardwise.engine.processes.worker_errors import pack_error
from shardwise.engine.processes.worker_status import DecodeProgress, WorkerStatus
from shardwise.engine.stats.counts import StorageCounts
from shardwise.storage.credentials import import_credentials

# Before an answer is sent again, for which too many descriptors of this user were in flight.
_RETRY_S = 0.01
# The limit of open files, which is 1,024 by default, is raised to this.
_MAX_OPEN_FILES = 16_384


@dataclass(eq=False)
class _Worker:
    """The state that a worker's threads share: builder, mapped slots and parked tasks."""

    sock: socket.socket
    builder: BatchBuilder
    status: WorkerStatus
    number: int
    decode_timeout: float | None

    def __post_init__(self) -> None:
        self._layout = self.builder.layout
        self._lock = threading.RLock()
        self._slots: dict[int, NDArray[np.uint8]] = {}
        # Tasks with their memory, which they keep mapped. They are of one run, whose prefetch depth
        # bounds them: what is left of a run that was dropped is passed over before the next.
        self._parked: deque[tuple[Task, NDArray[np.uint8] | None]] = deque()
        self._message_slots = message_slots()
        self._storage = StorageCounts()
        self._reads = self.builder.reads(cached=False)
        self._has_announced = False

    def run(self, thread: int) -> None:
        """Run tasks until the socket ends."""
        self.status.end(self.number, thread)
        while True:
            try:
                taken = self._next_parked() or self._receive()
                if taken is None:
                    return
                task, memory = taken
                self.status.begin(self.number, thread, task.batch, task.start)
                self._look_ahead(task)
                answer = self._answer(task, memory, self._watch(thread, task))
                self._reads.finish(task.request)
                packed = _pack_answer(answer, self._message_slots)
                del answer
                while not self._is_sent(packed):
                    if task.run != self.status.run:
                        packed.drop()
                        break
                    if not self._park():
                        time.sleep(_RETRY_S)
                # Not before: of a worker that is stopped, the trainer knows what it still had.
                self.status.end(self.number, thread)
            except (BrokenPipeError, ConnectionResetError):
                return

    def _receive(self, flags: int = 0) -> tuple[Task, NDArray[np.uint8] | None] | None:
        """The next task of the current run and its memory; None at the end of the socket."""
        while True:
            try:
                message = receive(self.sock, flags=flags)
            except StorageError as error:
                # The task is not known, so no other worker would run it.
                self._send_error(RECEIVE_FAILED, 0, error)
                os._exit(1)
            if message is None:
                return None
            task, descriptor = message
            try:
                # Otherwise it is of an iterator that was given up.
                if task.run == self.status.run:
                    return task, self._memory(task, descriptor)
            except StorageError as error:
                self._send_error(task.batch, task.start, error)
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def _send_error(self, batch: int, start: int, error: StorageError) -> None:
        answer = Answer(batch, start, self.number, error=pack_error(error))
        send(self.sock, pack(answer, self._message_slots))

    def _park(self) -> bool:
        """Take a task off the socket for later, if there is one, so that its descriptor arrives.

        Too many descriptors of this user are under way: if all workers of all trainers only waited
        to send an answer, none would receive any. A worker that is stopped loses what it has
        parked, as if it had just received it: `DecodeDeadlines.has_lost` sees to that.
        """
        with self._lock, suppress(BlockingIOError):
            taken = self._receive(socket.MSG_DONTWAIT)
            # At the end of the socket, the next attempt to send raises.
            if taken is not None:
                self._parked.append(taken)
                return True
        return False

    def _look_ahead(self, task: Task) -> None:
        """Take a task for later, if this process reads from a store, and announce its reads."""
        with self._lock:
            if not self._has_announced:
                # Announcing shows whether this process ever reads from one: a task that waits for
                # nothing could be another worker's.
                self._has_announced = True
                self._reads.announce(task.request)
            if self._reads.want_more and not self._parked and self._park():
                self._reads.announce(self._parked[-1][0].request)

    def _next_parked(self) -> tuple[Task, NDArray[np.uint8] | None] | None:
        with suppress(IndexError):
            while True:
                task, memory = self._parked.popleft()
                if task.run == self.status.run:
                    return task, memory
                self._reads.finish(task.request)
        return None

    def _is_sent(self, packed: Packed) -> bool:
        try:
            send(self.sock, packed)
        except BlockingIOError:
            return False
        return True

    def _watch(self, thread: int, task: Task) -> DecodeProgress | None:
        """The record that notifies the trainer of each decoder that starts, if it watches."""
        if self.decode_timeout is None:
            return None
        record = self.status.record(self.number, thread)
        return DecodeProgress(record, stuck=task.stuck, timeout=self.decode_timeout)

    def _answer(
        self, task: Task, memory: NDArray[np.uint8] | None, watch: DecodeProgress | None
    ) -> Answer:
        watching = Watching(watch, one_by_one=task.one_by_one)
        try:
            if task.whole:
                value: Any = self.builder.build(task.request, watching)
            else:
                views = self._views(task, memory)
                rows = {name: views[name] for name in self._layout}
                partial = PartialBatch(task.request, rows)
                self.builder.fill(partial, 0, len(task.request.ids), watching)
                value = partial.chunks[0].without(rows)
                if len(value.columns) == 1:
                    learned = {name: views[name] for name in task.learned}
                    value.columns = [write_in_place(value.columns[0], learned)]
        except Exception as error:  # noqa: BLE001 - the trainer raises it: it is the user's code
            return Answer(task.batch, task.start, self.number, error=pack_error(error))
        value.stages.storage = self._storage.take()
        return Answer(task.batch, task.start, self.number, value=value)

    def _views(self, task: Task, memory: NDArray[np.uint8] | None) -> dict[str, NDArray[Any]]:
        """The rows of this chunk in the batch's memory, which is the trainer's, too."""
        layout = RowLayout({**self._layout, **task.learned})
        if memory is None:
            return layout.empty()
        views = layout.views(memory, task.num_rows)
        stop = task.start + len(task.request.ids)
        return {name: rows[task.start : stop] for name, rows in views.items()}

    def _memory(self, task: Task, descriptor: int | None) -> NDArray[np.uint8] | None:
        """The memory of a slot, mapped at its first task."""
        if descriptor is None:
            return None
        with self._lock:
            memory = self._slots.pop(task.slot, None)
            if memory is None:
                memory = map_without_file(descriptor)
            # Least recently used first: those that left the trainer's pool are unmapped, when no
            # task has them.
            self._slots[task.slot] = memory
            while len(self._slots) > max_slots():
                del self._slots[next(iter(self._slots))]
        return memory


def _pack_answer(answer: Answer, slots: SlotPool) -> Packed:
    try:
        # The trainer's main thread only receives it.
        value = None if answer.value is None else Unread.of(answer.value)
        return pack(answer._replace(value=value), slots)
    except StorageError as error:
        failure: Exception = error
    except Exception as error:  # noqa: BLE001 - a value that does not pickle is the user's
        error.add_note(
            "a batch from a worker process must consist of what pickles: define its classes at the "
            "top of the program or in a module, or choose threads with num_workers=0"
        )
        failure = error
    failed = Answer(answer.batch, answer.start, answer.worker, error=pack_error(failure))
    return pack(failed, slots)


def _end_with(trainer: int) -> None:
    """End this process when the trainer ends, however it does."""
    # It may be gone already.
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(trainer)
        if os.getppid() == trainer:
            select.select([watched], [], [])
    os._exit(0)


def _allow_many_files() -> None:
    """Let this process keep the shards of a shuffle window open, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _die(hook: threading.ExceptHookArgs) -> None:
    """End the process with a thread that fails: the trainer sees its end, and not a lost task."""
    traceback.print_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)
    os._exit(1)


def main() -> None:
    """Run a worker; its arguments are the socket, the files of its job and status, its number."""
    # Ctrl-C ends the trainer, which ends the workers by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _die
    _allow_many_files()
    sock_fd, job_fd, status_fd, number = map(int, sys.argv[-4:])
    sock = socket.socket(fileno=sock_fd)
    # Other workers map the same file, so this one's map is private.
    job = unpack_file(job_fd, holder=0)
    threading.Thread(target=_end_with, args=(job["trainer"],), daemon=True).start()
    credentials = import_credentials(job["credentials"])
    try:
        builder = job.pop("builder").read()
    except Exception as error:  # noqa: BLE001 - whatever importing the user's code raises
        failed = Answer(START_FAILED, 0, number, error=pack_error(error))
        send(sock, pack(failed, message_slots()))
        sys.exit(1)
    # The builder keeps those that it uses.
    del credentials, job["credentials"]
    status = WorkerStatus(status_fd, job["num_workers"], job["num_threads"])
    worker = _Worker(sock, builder, status, number, job["decode_timeout"])
    for thread in range(1, job["num_threads"]):
        threading.Thread(target=worker.run, args=(thread,), daemon=True).start()
    worker.run(0)
    # The trainer has closed the socket: chunks that other threads still load are not needed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
