"""The pool of worker processes: starts them, talks to them, watches and ends them.

One socket joins the trainer to all of them: any free worker takes the next task. The trainer
watches its processes by descriptor, so that the death of one is seen at once; the workers watch the
trainer the same way.
"""

from __future__ import annotations

import errno
import os
import resource
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
from typing import TYPE_CHECKING, Any

from shardwise.base.errors import ShardwiseError, WorkerError, message_of
from shardwise.engine.processes.pickling import Unread, pickle_by_value
from shardwise.engine.processes.shared_memory import above_stdio, explained
from shardwise.engine.processes.slots import SlotPool
from shardwise.engine.processes.start_worker import start_worker
from shardwise.engine.processes.tasks import RECEIVE_FAILED, START_FAILED, Answer, Stopped, Task
from shardwise.engine.processes.transport import Packed, pack, receive, send
from shardwise.engine.processes.worker_errors import unpack_error
from shardwise.engine.processes.worker_status import DecodeDeadlines, WorkerStatus
from shardwise.storage.credentials import export_credentials

if TYPE_CHECKING:
    from shardwise.engine.batch.builder import BatchBuilder

# Workers end when their socket does; one in a long call of a decoder is killed after this.
_END_TIMEOUT_S = 0.5
# Before a task is sent again, for which too many descriptors of this user were in flight.
_RETRY_S = 0.01


class WorkerPool:
    """Processes that load row chunks, each with `num_threads` threads.

    The builder is pickled once, by value, so that functions of the main program travel with it. A
    worker that takes more than `decode_timeout` seconds for a sample is replaced.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        *,
        num_workers: int,
        num_threads: int,
        decode_timeout: float | None = None,
    ) -> None:
        arrays: list[Any] = []
        job = {
            "builder": Unread([pickle_by_value(builder, arrays), *arrays]),
            "trainer": os.getpid(),
            "num_workers": num_workers,
            "num_threads": num_threads,
            "decode_timeout": decode_timeout,
            # Their pickles are handles: the values travel in this file, for the worker alone.
            "credentials": export_credentials(),
        }
        self._unsent: deque[tuple[Task, Packed]] = deque()
        # Batch and row of tasks that were sent with a descriptor and are not answered yet. If they
        # used up the user's descriptors in flight, no answer could be sent, and no task received.
        self._lent: set[tuple[int, int]] = set()
        self._max_lent = _max_descriptors() // 2
        self._is_refused = False
        # Sent or received.
        self._num_messages = 0
        self._arrived: list[Answer | Stopped] = []
        self._maps: list[None] = []
        self._slots = SlotPool(max_idle=0)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pidfds: dict[int, int] = {}
        with _explain_errors(num_workers):
            self._selector = selectors.DefaultSelector()
            self._sock, self._theirs = _socket_pair()
            self._wakes = above_stdio(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        # Open as long as a thread may write into it.
        weakref.finalize(self, os.close, self._wakes).atexit = False
        self.status = WorkerStatus.create(num_workers, num_threads)
        # All workers map its file.
        self._job: Packed | None = pack(job, SlotPool(max_idle=0), max_inline=0)
        self._deadlines = (
            None if decode_timeout is None else DecodeDeadlines(self.status, decode_timeout)
        )
        try:
            with _explain_errors(num_workers):
                self._sock.setblocking(False)
                self._selector.register(self._sock, selectors.EVENT_READ)
                self._selector.register(self._wakes, selectors.EVENT_READ)
                for number in range(num_workers):
                    self._start(number)
            if self._deadlines is None:
                # No more workers will be started, and the end of all workers shows at once.
                self._theirs.close()
                self._job = None
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> None:
        """Start worker `number`, the first time or in place of one that was stopped."""
        sock, status = self._theirs.fileno(), self.status.descriptor
        assert self._job is not None
        job = self._job.descriptor
        assert job is not None
        process = start_worker(job, sock=sock, status=status, number=number)
        self._processes[number] = process
        self._pidfds[number] = os.pidfd_open(process.pid)
        self._selector.register(self._pidfds[number], selectors.EVENT_READ)

    def send(self, task: Task, descriptor: int | None) -> None:
        """Queue a task for the workers; the socket takes it when it has room."""
        # Taking it apart would double its time, and there are many in each batch.
        self._unsent.append((task, pack(task, self._slots, descriptor=descriptor, kind=None)))
        self._flush()

    def drop(self, run: int) -> None:
        """Drop the unsent tasks of a run, and let workers pass over the others."""
        if self.status.run == run:
            self.status.run = -1
        # Tasks that were sent are received and passed over, and get no answer.
        self._lent.clear()
        kept: deque[tuple[Task, Packed]] = deque()
        for entry in self._unsent:
            if entry[0].run == run:
                entry[1].drop()
            else:
                kept.append(entry)
        self._unsent = kept

    def have_begun(self) -> bool:
        """Whether every worker has started to take tasks; called before the first task is sent."""
        self._receive()
        self._watch(0.0)
        return self.status.all_idle

    def wake(self) -> None:
        """Let the thread that waits for answers look around; any thread may call it."""
        os.eventfd_write(self._wakes, 1)

    def answers(self, *, wait: bool) -> list[Answer | Stopped]:
        """All answers that have arrived; with `wait`, none only if woken.

        A worker that was stopped comes among them, after its answers.
        """
        if not wait:
            # A dead worker shows, too, though answers of the others may never let it wait.
            self._watch(0.0)
        while True:
            self._flush()
            self._receive()
            self._stop_overdue()
            if self._arrived:
                arrived, self._arrived = self._arrived, []
                return arrived
            next_s = None if self._deadlines is None else self._deadlines.next_s()
            if not wait or self._watch(next_s):
                return []

    def _stop_overdue(self) -> None:
        """Stop the workers whose decoders are overdue, and replace them."""
        if self._deadlines is None:
            return
        for number in self._deadlines.overdue():
            process = self._processes[number]
            if process.poll() is not None:
                return  # it ended by itself, which is an error
            self._selector.unregister(self._pidfds[number])
            os.close(self._pidfds[number])
            # The group includes what it started itself, such as a decoder's own program.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # Answers that it sent before count; tasks that it had are sent again.
            self._receive()
            self._lent.clear()
            self._arrived.append(Stopped(self._deadlines.stopped(number)))
            with _explain_errors(len(self._processes)):
                self._start(number)
        if not self._unsent and self._deadlines.has_lost(self._num_messages):
            self._arrived.append(Stopped({}, is_idle=True))

    def _watch(self, timeout: float | None) -> bool:
        """Wait for an answer, room for a task, or a dead worker; returns whether it was woken."""
        waits_for_room = self._unsent and not self._is_refused and not self._is_lent_out
        self._selector.modify(
            self._sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if waits_for_room else 0)
        )
        if self._is_refused:
            timeout = _RETRY_S if timeout is None else min(timeout, _RETRY_S)
        found = {key.fileobj for key, _ in self._selector.select(timeout)}
        if is_woken := self._wakes in found:
            os.eventfd_read(self._wakes)
        if found - {self._sock, self._wakes}:
            # A message that it sent before may have the reason.
            self._receive()
            raise self._death()
        return is_woken

    def _receive(self) -> None:
        while True:
            try:
                message = receive(self._sock, self._maps)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # Raised once, before the messages that the worker sent: those follow, then the end.
                continue
            if message is None:
                raise self._death()
            answer: Answer = message[0]
            if answer.error is not None and answer.batch in (START_FAILED, RECEIVE_FAILED):
                error = unpack_error(answer.error)
                why = (
                    f"go on: {message_of(error)}"
                    if answer.batch == RECEIVE_FAILED
                    else "start: the dataset, its decoders and transforms must be importable in a "
                    f"fresh interpreter ({type(error).__name__}: {message_of(error)})"
                )
                raise WorkerError(f"worker {answer.worker} could not {why}") from error
            self._num_messages += 1
            self._lent.discard((answer.batch, answer.start))
            self._arrived.append(answer)

    @property
    def _is_lent_out(self) -> bool:
        """Whether the next task has to wait for an answer."""
        return self._unsent[0][1].descriptor is not None and len(self._lent) >= self._max_lent

    def _flush(self) -> None:
        self._is_refused = False
        while self._unsent and not self._is_lent_out:
            task, packed = self._unsent[0]
            try:
                send(self._sock, packed)
            except BlockingIOError as error:
                self._is_refused = error.errno == errno.ETOOMANYREFS
                return
            except (BrokenPipeError, ConnectionResetError):
                # A message that a worker sent before may have the reason.
                self._receive()
                raise self._death() from None
            self._unsent.popleft()
            self._num_messages += 1
            if packed.descriptor is not None:
                self._lent.add((task.batch, task.start))

    def _death(self) -> WorkerError:
        """The error of the worker that ended, which may take a moment to be seen."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while time.monotonic() < deadline:
            for number, process in self._processes.items():
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
        self._unsent.clear()
        self._slots.close()
        # A forked child may hold the socket, too: the workers must see its end all the same.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._theirs.close()
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int) and key.fileobj != self._wakes:
                os.close(key.fileobj)
        self._selector.close()
        self.status.close()


@contextmanager
def _explain_errors(num_workers: int) -> Iterator[None]:
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


def _max_descriptors() -> int:
    """The number of the user's descriptors that may be in messages not yet received."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(2, soft)


def _meaning(code: int) -> str:
    if code == -signal.SIGKILL:
        return " (killed: out of memory?)"
    return f" ({signal.Signals(-code).name})" if code < 0 else ""
