"""A worker process: takes pieces of batches from the socket until the trainer is gone.

It is a fresh interpreter, started by `pool.py` with the trainer's module path: no fork of the
trainer, nothing inherited but the socket and the file with what it works on. Each of
its threads takes the next task that comes, whatever batch it belongs to. It ends when the socket
does, so that a trainer that is killed leaves no process behind (I8).
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.batch.builder import BatchMaker
from shardwise.engine.batch.partial_batch import Draft
from shardwise.engine.processes.shared_columns import place
from shardwise.engine.processes.shared_memory import RowLayout, Slot, max_slots
from shardwise.engine.processes.tasks import UNABLE, UNBEGUN, Answer, Task
from shardwise.engine.processes.transport import Packed, close_own_file, pack, receive, send
from shardwise.engine.processes.worker_errors import pack_error
from shardwise.engine.processes.worker_status import Board
from shardwise.engine.stats.storage_counts import StorageCounts
from shardwise.errors import StorageError
from shardwise.storage.stores.credentials import import_credentials

__all__ = ["main"]

# Pause before an answer is sent again that the user's limit of descriptors under way refused.
_PAUSE_S = 0.01
# Descriptors that a worker would like to have; a usual limit is 1,024.
_OPEN_FILES = 16_384


class _Worker:
    """What the threads of a worker share: the maker, and the slots that were seen."""

    def __init__(self, sock: socket.socket, maker: BatchMaker, board: Board, number: int) -> None:
        self._sock = sock
        self._maker = maker
        self._board = board
        self._number = number
        self._layout = dict(maker.dataset.layout())
        self._lock = threading.Lock()
        self._slots: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._storage = StorageCounts()

    def work(self, thread: int) -> None:
        """Do tasks until there are no more."""
        while True:
            try:
                try:
                    message = receive(self._sock)
                except StorageError as error:
                    # Which piece it was is not known: nobody would make it.
                    send(self._sock, pack(Answer(UNABLE, 0, self._number, error=pack_error(error))))
                    os._exit(1)
                if message is None:
                    return
                task, descriptor = message
                if task.run != self._board.run:
                    # Of an iterator that was given up.
                    if descriptor is not None:
                        os.close(descriptor)
                    continue
                self._board.begin(self._number, thread, task.batch, task.start)
                packed = _packed(self._answer(task, descriptor))
                self._board.end(self._number, thread)
                while not self._is_sent(packed):
                    time.sleep(_PAUSE_S)
                close_own_file(packed)
            except (BrokenPipeError, ConnectionResetError):
                return

    def _is_sent(self, packed: Packed) -> bool:
        try:
            send(self._sock, packed)
        except BlockingIOError:
            return False
        return True

    def _answer(self, task: Task, descriptor: int | None) -> Answer:
        try:
            if task.whole:
                value: Any = self._maker.make(task.work)
            else:
                views = self._views(task, descriptor)
                rows = {name: views[name] for name in self._layout}
                draft = Draft(task.work, rows)
                self._maker.fill(draft, 0, len(task.work.ids))
                value = draft.pieces[0].without(rows)
                if len(value.columns) == 1:
                    spare = {name: views[name] for name in task.spare}
                    value.columns = [place(value.columns[0], spare)]
        except Exception as error:  # noqa: BLE001 - the trainer raises it: it is the user's code
            return Answer(task.batch, task.start, self._number, error=pack_error(error))
        value.stages.storage = self._storage.take()
        return Answer(task.batch, task.start, self._number, value=value)

    def _views(self, task: Task, descriptor: int | None) -> dict[str, NDArray[Any]]:
        """The rows of this piece in the batch's memory, which is the trainer's, too."""
        layout = RowLayout({**self._layout, **task.spare})
        if descriptor is None:
            return layout.empty()
        views = layout.views(self._memory(task, descriptor), task.num_rows)
        stop = task.start + len(task.work.ids)
        return {name: rows[task.start : stop] for name, rows in views.items()}

    def _memory(self, task: Task, descriptor: int) -> NDArray[np.uint8]:
        """The memory of a slot, mapped when it is first seen."""
        with self._lock:
            memory = self._slots.pop((task.slot, task.slot_bytes), None)
            if memory is None:
                memory = Slot(task.slot, descriptor, task.slot_bytes).memory
            # Kept by use: slots that left the trainer's pool are forgotten first.
            self._slots[task.slot, task.slot_bytes] = memory
            while len(self._slots) > max_slots():
                del self._slots[next(iter(self._slots))]
        os.close(descriptor)
        return memory


def _packed(answer: Answer) -> Packed:
    try:
        return pack(answer)
    except StorageError as error:
        return pack(Answer(answer.batch, answer.start, answer.worker, error=pack_error(error)))
    except Exception as error:  # noqa: BLE001 - a value that does not pickle is the user's
        error.add_note("a batch from a worker process must consist of what pickles")
        return pack(Answer(answer.batch, answer.start, answer.worker, error=pack_error(error)))


def _end_with(trainer: int) -> None:
    """End this process when the trainer ends, however it does."""
    watched = os.pidfd_open(trainer)
    if os.getppid() == trainer:
        select.select([watched], [], [])
    os._exit(0)


def _allow_many_files() -> None:
    """Let this process keep the shards of a whole window open, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _die(hook: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave its piece to nobody: the process ends, and is missed."""
    traceback.print_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)
    os._exit(1)


def main() -> None:
    """Run a worker: arguments are the socket, the file with its job, the board and its number."""
    # Ctrl-C is the trainer's business; it ends the workers by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _die
    _allow_many_files()
    sock_fd, job_fd, board_fd, number = map(int, sys.argv[-4:])
    sock = socket.socket(fileno=sock_fd)
    with open(job_fd, "rb") as file:
        job = pickle.load(file)  # noqa: S301 - the trainer's own, through an inherited descriptor
    if hasattr(os, "pidfd_open"):
        threading.Thread(target=_end_with, args=(job["trainer"],), daemon=True).start()
    credentials = import_credentials(job["credentials"])
    try:
        maker = pickle.loads(job["maker"])  # noqa: S301 - the same
    except Exception as error:  # noqa: BLE001 - whatever importing the user's code raises
        send(sock, pack(Answer(UNBEGUN, 0, number, error=pack_error(error))))
        sys.exit(1)
    # The maker holds on to those that it uses.
    del credentials, job["credentials"]
    board = Board(board_fd, job["num_workers"], job["num_threads"])
    worker = _Worker(sock, maker, board, number)
    for thread in range(1, job["num_threads"]):
        threading.Thread(target=worker.work, args=(thread,), daemon=True).start()
    worker.work(0)
    # The trainer is done with us: pieces that other threads still make are for nobody.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
