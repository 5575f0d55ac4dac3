"""The pool of worker processes: starts them, talks to them, watches and ends them.

One socket joins the trainer to all of them: any free worker takes the next task. The trainer
watches its processes by descriptor, so that the death of one is seen at once; the workers watch the
trainer the same way.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardwise.engine.processes.pickling import pickled_by_value
from shardwise.engine.processes.shared_memory import above_stdio, anonymous_file, explained
from shardwise.engine.processes.tasks import RECEIVE_FAILED, START_FAILED, Answer, Task
from shardwise.engine.processes.transport import Packed, close_own_file, pack, receive, send
from shardwise.engine.processes.worker_errors import unpack_error
from shardwise.engine.processes.worker_status import WorkerStatus
from shardwise.errors import ShardwiseError, WorkerError, message_of
from shardwise.storage.stores.credentials import export_credentials

if TYPE_CHECKING:
    from shardwise.engine.batch.builder import BatchBuilder

__all__ = ["WorkerPool"]

# Workers end when their socket does; one in a long call of a decoder is killed after this.
_END_TIMEOUT_S = 0.5
# Linux; elsewhere the trainer polls its workers every half second.
_PIDFD = hasattr(os, "pidfd_open")
# Before a task is sent again, for which too many descriptors of this user were in flight.
_RETRY_S = 0.01
# Inside a worker its own threads are the parallelism: libraries get one thread each.
_ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "OPENCV_FOR_THREADS_NUM",
    ),
    "1",
)

_WORKER = "shardwise.engine.processes.worker"


class WorkerPool:
    """Processes that load row chunks.

    Args:
        builder: loads and collates; it is pickled once, by value, so that functions of the main
            program travel with it.
        num_workers: processes.
        num_threads: threads in each.
    """

    def __init__(self, builder: BatchBuilder, *, num_workers: int, num_threads: int) -> None:
        job = {
            "builder": pickled_by_value(builder),
            "trainer": os.getpid(),
            "num_workers": num_workers,
            "num_threads": num_threads,
            # Their pickles are handles: the values travel in this file, which nobody else reads.
            "credentials": export_credentials(),
        }
        self._unsent: deque[tuple[int, Packed]] = deque()
        self._is_refused = False
        self._arrived: list[Answer] = []
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._processes: list[subprocess.Popen[bytes]] = []
        with _explained(num_workers):
            self._selector = selectors.DefaultSelector()
            self._sock, theirs = _socket_pair()
        self.status = WorkerStatus.create(num_workers, num_threads)
        try:
            with theirs, _explained(num_workers):
                self._sock.setblocking(False)
                self._selector.register(self._sock, selectors.EVENT_READ)
                for number in range(num_workers):
                    self._start(pickle.dumps(job), theirs.fileno(), number)
        except BaseException:
            self.close()
            raise

    def _start(self, job: bytes, sock: int, number: int) -> None:
        # Each worker reads its file from the beginning, so each gets one of its own.
        file = anonymous_file(len(job))
        try:
            os.pwrite(file, job, 0)
            inherited = (sock, file, self.status.descriptor)
            # The trainer's modules and no others: what lies in the working directory is no module
            # of a program that was started from elsewhere.
            start = f"import sys; sys.path[:] = {sys.path!r}; from {_WORKER} import main; main()"
            process = subprocess.Popen(  # noqa: S603 - this interpreter, this package
                [sys.executable, "-P", "-c", start, _WORKER, *map(str, (*inherited, number))],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=_inherited_or_null(1),
                stderr=_inherited_or_null(2),
                env={**os.environ, **_ONE_THREAD},
                # Ctrl-C in a terminal reaches the trainer alone.
                process_group=0,
            )
        finally:
            os.close(file)
        self._processes.append(process)
        if _PIDFD:
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ)

    def send(self, run: int, task: Task, descriptor: int | None) -> None:
        """Queue a task for the workers; the socket takes it when it has room."""
        self._unsent.append((run, pack(task, descriptor=descriptor)))
        self._flush()

    def drop(self, run: int) -> None:
        """Drop the unsent tasks of a run, and let workers pass over the others."""
        if self.status.run == run:
            self.status.run = -1
        kept: deque[tuple[int, Packed]] = deque()
        for entry in self._unsent:
            if entry[0] == run:
                close_own_file(entry[1])
            else:
                kept.append(entry)
        self._unsent = kept

    def answers(self, timeout: float | None) -> list[Answer]:
        """Wait for answers: all that have arrived, none after `timeout` seconds.

        Raises:
            WorkerError: a worker ended, or could not begin.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._flush()
            self._receive()
            if self._arrived:
                arrived, self._arrived = self._arrived, []
                return arrived
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._watch(left)

    def _watch(self, timeout: float | None) -> None:
        """Wait until there is an answer, room for a task, or a dead worker."""
        waits_for_room = self._unsent and not self._is_refused
        self._selector.modify(
            self._sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if waits_for_room else 0)
        )
        if self._is_refused:
            timeout = _RETRY_S if timeout is None else min(timeout, _RETRY_S)
        elif not _PIDFD:
            timeout = _END_TIMEOUT_S if timeout is None else min(timeout, _END_TIMEOUT_S)
        ready = self._selector.select(timeout)
        ended = any(key.fileobj is not self._sock for key, _ in ready)
        if ended or (not _PIDFD and any(p.poll() is not None for p in self._processes)):
            # What it sent before may say why.
            self._receive()
            raise self._death()

    def _receive(self) -> None:
        while True:
            try:
                message = receive(self._sock, self._maps)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It is told once, before what the worker sent: that follows, and then the end.
                continue
            if message is None:
                raise self._death()
            answer: Answer = message[0]
            if answer.error is not None and answer.batch in (START_FAILED, RECEIVE_FAILED):
                error = unpack_error(answer.error)
                why = (
                    f"go on: {message_of(error)}"
                    if answer.batch == RECEIVE_FAILED
                    else "begin: the dataset, its decoders and transforms must be importable in a "
                    "fresh interpreter"
                )
                raise WorkerError(f"worker {answer.worker} could not {why}") from error
            self._arrived.append(answer)

    def _flush(self) -> None:
        self._is_refused = False
        while self._unsent:
            packed = self._unsent[0][1]
            try:
                send(self._sock, packed)
            except BlockingIOError as error:
                self._is_refused = error.errno == errno.ETOOMANYREFS
                return
            except (BrokenPipeError, ConnectionResetError):
                # What a worker sent before may say why.
                self._receive()
                raise self._death() from None
            self._unsent.popleft()
            close_own_file(packed)

    def _death(self) -> WorkerError:
        """The error of the worker that ended, which may take a moment to be seen."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while time.monotonic() < deadline:
            for number, process in enumerate(self._processes):
                code = process.poll()
                if code is not None:
                    return WorkerError(
                        f"worker process {number} (pid {process.pid}) ended with exit code "
                        f"{code}{_meaning(code)}",
                        exitcode=code,
                    )
            time.sleep(0.01)
        return WorkerError("the worker processes closed their socket")

    def close(self) -> None:
        """End the processes; never waits for what they are doing."""
        for _, packed in self._unsent:
            close_own_file(packed)
        self._unsent.clear()
        # A forked child may hold the socket, too: the workers must see its end all the same.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()
        self.status.close()


@contextmanager
def _explained(num_workers: int) -> Iterator[None]:
    """Raise the library's error where a limit of the system is in the way."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ShardwiseError):
            raise
        raise explained(error, f"can't start {num_workers} worker processes") from error


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that keep message borders, with descriptors above 2."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        return (
            socket.socket(fileno=above_stdio(ours.detach())),
            socket.socket(fileno=above_stdio(theirs.detach())),
        )


def _inherited_or_null(descriptor: int) -> int | None:
    """What a worker gets as stdout or stderr: the trainer's (None), or /dev/null if it is closed.

    Another file may have taken the number since; it would not be inherited.
    """
    try:
        return None if os.get_inheritable(descriptor) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL


def _meaning(code: int) -> str:
    if code == -signal.SIGKILL:
        return " (killed: out of memory?)"
    return f" ({signal.Signals(-code).name})" if code < 0 else ""
