"""A batch server: the batch builder behind a socket. It keeps nothing that a client needs.

A client that has greeted (`reception.py`) has a thread that reads its requests and one that sends
answers; the threads of one pool build the batches of all clients. Whatever a connection sends, only
that connection is given up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from shardwise.base.errors import message_of
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.engine.stats.counts import StorageCounts
from shardwise.engine.thread_pool import ThreadPool
from shardwise.extensions.service.batch_cache import Answer, BatchCache
from shardwise.extensions.service.batches import decode_request, encode_batch
from shardwise.extensions.service.error_frames import encode_error
from shardwise.extensions.service.frames import FrameError, Kind, Limits, read_frame, write
from shardwise.extensions.service.greeting import (
    MAX_CREDITS,
    Admission,
    Refusal,
    greeting_steps,
    refuse,
    welcome,
)
from shardwise.extensions.service.reception import Reception, max_connections
from shardwise.extensions.service.transport import Connection, Listener
from shardwise.extensions.service.version import PYTHON, VersionWord, builder_of, builder_options
from shardwise.sources.samples import Samples

_logger = logging.getLogger("shardwise")

# A client that has greeted sends each part of its pickle within this time.
_PICKLE_S = 10.0
# A request of 10^7 samples.
_REQUEST = Limits(header=64 << 10, payload=160 << 20)
# Builders of other jobs' datasets that are kept.
_MAX_BUILDERS = 8
_DEFAULT_CACHE_BYTES = 256 << 20


class _Job:
    """A builder, what names its batches, and which data and code it has here."""

    def __init__(self, builder: BatchBuilder, name: bytes, word: VersionWord) -> None:
        self.builder = builder
        self.name = name
        self.word = word
        self.reads = builder.reads()
        self.collate = builder_options(builder)["collate"]

    def key(self, request: BatchRequest) -> bytes:
        """Names a batch; its step is for messages only."""
        digest = hashlib.sha256(self.name)
        valid = b"" if request.valid is None else b"v" + request.valid.tobytes()
        facts = f"{request.epoch} {len(request.ids)} {request.sizes}"
        for part in (facts.encode(), request.ids.tobytes(), valid):
            digest.update(part)
        return digest.digest()


class BatchServer:
    """Serves batches of a dataset, or of what clients bring under the token, until closed."""

    def __init__(
        self,
        listener: Listener,
        *,
        dataset: Samples | None = None,
        token: bytes | None = None,
        num_threads: int = 1,
        cache_bytes: int = _DEFAULT_CACHE_BYTES,
    ) -> None:
        if dataset is None and token is None:
            raise ValueError("a server without a dataset takes them from clients: give it a token")
        if listener.needs_token and token is None:
            raise ValueError(
                f"a server at {listener.address} needs a token: UCX trusts its clients, and a "
                "malformed address of theirs would end this process"
            )
        self.cache = BatchCache(cache_bytes)
        self._reception = Reception(
            listener,
            greet=partial(greeting_steps, token=token, has_dataset=dataset is not None),
            take=self._take,
        )
        self._max_clients = max_connections()[1]
        self.address = listener.address
        self._dataset = dataset
        self._word = None if dataset is None else VersionWord.of(dataset)
        self._num_threads = num_threads
        self._pool = ThreadPool(num_threads, name="shardwise_server")
        self._storage = StorageCounts()
        self._lock = threading.Lock()
        self._jobs: OrderedDict[Any, _Job] = OrderedDict()
        self._connections: set[Connection] = set()
        self._num_clients = 0
        self._idle_since: float | None = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since its last client left, or since it started; 0 while there is one."""
        since = self._idle_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        self._reception.start()

    def close(self) -> None:
        self._reception.close()
        with self._lock:
            ended: list[Any] = [*self._connections, *(job.reads for job in self._jobs.values())]
        for each in ended:
            each.close()
        self._pool.close(timeout_s=1.0)

    def _take(self, connection: Connection, admission: Admission) -> None:
        with self._lock:
            is_full = len(self._connections) >= self._max_clients
            if not is_full:
                self._connections.add(connection)
        connection.limit(_PICKLE_S)
        trouble = f"there are {self._max_clients} clients; more need a higher limit of open files"
        args = (connection, admission)
        thread = threading.Thread(
            target=self._serve, args=args, name="shardwise_client", daemon=True
        )
        try:
            if not is_full:
                thread.start()
                return
        except RuntimeError as error:  # the system refuses a thread
            trouble = str(error)
        self._reception.warn(f"a client has to come again: {trouble}")
        self._leave(connection)

    def _serve(self, connection: Connection, admission: Admission) -> None:
        outbox: SimpleQueue[tuple[int, Answer] | None] = SimpleQueue()
        waiting: list[Any] = []
        is_client = False
        try:
            job = self._job_of(admission)
            welcome(connection, min(MAX_CREDITS, self._num_threads + 2))
            connection.limit(None)
            is_client = True
            self._count(1)
            threading.Thread(
                target=_send, args=(connection, outbox), name="shardwise_answers", daemon=True
            ).start()
            self._answer(connection, job, outbox, waiting)
        except Refusal as refusal:
            self._reception.warn(f"a client was refused: {refusal}")
            with suppress(OSError):
                refuse(connection, refusal)
        except (FrameError, EOFError, OSError, RuntimeError, MemoryError) as error:
            _logger.debug("a connection ended: %s", error)  # or the system refuses a thread
        finally:
            outbox.put(None)
            self._leave(connection)
            for each in waiting.copy():
                self.cache.leave(*each)
            if is_client:
                self._count(-1)

    def _leave(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._connections.discard(connection)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_clients += change
            self._idle_since = None if self._num_clients else time.monotonic()

    def _job_of(self, admission: Admission) -> _Job:
        """The job that builds a client's batches; refuses other data and other code."""
        if self._word is not None:
            _refuse_other(self._word, admission)
        elif admission.word.release != VersionWord.release_here():
            raise Refusal(
                f"the server has release {VersionWord.release_here()}, the client "
                f"{admission.word.release}"
            )
        is_own = self._dataset is not None and not admission.needs_pickle
        options = json.dumps(admission.options, sort_keys=True)
        key = ("own", options) if is_own else ("pickle", admission.digest)
        with self._lock:
            job = self._jobs.get(key)
        if job is None:
            pickled = None if is_own else admission.ask_pickle()
            try:
                job = self._new_job(admission, pickled, hashlib.sha256(repr(key).encode()).digest())
            except Exception as error:  # noqa: BLE001 - options and objects of the client's
                what = "options" if is_own else "dataset: install there what it imports"
                raise Refusal(
                    f"the server can't load the client's {what}: {type(error).__name__}: "
                    f"{message_of(error)}"
                ) from None
        # A pickle only names the functions of modules, which may be others here than at the client.
        _refuse_other(job.word, admission)
        if job.collate != admission.options.get("collate"):
            raise Refusal("the server has other code of the collate function than the client")
        with self._lock:
            self._jobs[key] = job
            self._jobs.move_to_end(key)
            while len(self._jobs) > _MAX_BUILDERS:
                self._jobs.popitem(last=False)
        return job

    def _new_job(self, admission: Admission, pickled: bytes | None, name: bytes) -> _Job:
        if pickled is None:
            assert self._dataset is not None
            assert self._word is not None
            return _Job(builder_of(self._dataset, admission.options), name, self._word)
        builder = pickle.loads(pickled)  # noqa: S301 - vouched for with the token of the job
        if not isinstance(builder, BatchBuilder):
            raise TypeError(f"a {type(builder).__name__} in place of a dataset")
        return _Job(builder, name, VersionWord.of(builder.dataset))

    def _answer(
        self,
        connection: Connection,
        job: _Job,
        outbox: SimpleQueue[tuple[int, Answer] | None],
        waiting: list[Any],
    ) -> None:
        while True:
            frame = read_frame(connection, _REQUEST)
            if frame.kind != Kind.REQUEST:
                raise FrameError(f"{frame.kind.name} in place of a request")
            request, number = decode_request(frame), frame.number
            if len(waiting) >= MAX_CREDITS or outbox.qsize() > MAX_CREDITS:
                raise FrameError(f"more than {MAX_CREDITS} requests or unread answers")

            def build(future: Future[Answer], request: BatchRequest = request) -> None:
                future.add_done_callback(lambda _: job.reads.finish(request))
                try:
                    job.reads.announce(request)
                    self._pool.submit(self._build, job, request, future)
                except BaseException as error:  # noqa: BLE001 - as below; others wait for it, too
                    future.set_result((Kind.ERROR, encode_error(error, place=self.address)))

            key = job.key(request)
            entry = key, self.cache.get(key, build)

            def pass_on(done: Future[Answer], entry: Any = entry, number: int = number) -> None:
                waiting.remove(entry)
                if not done.cancelled():
                    outbox.put((number, done.result()))

            waiting.append(entry)
            entry[1].add_done_callback(pass_on)

    def _build(self, job: _Job, request: BatchRequest, future: Future[Answer]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            batch = job.builder.build(request)
            batch.stages.storage = self._storage.take()
            answer = (Kind.BATCH, encode_batch(batch))
        except BaseException as error:  # noqa: BLE001 - user's code, sys.exit(): a client waits
            answer = (Kind.ERROR, encode_error(error, place=self.address))
        future.set_result(answer)


def _refuse_other(word: VersionWord, admission: Admission) -> None:
    difference = word.difference(admission.word)
    if difference is None:
        return
    if word.recipe != admission.word.recipe and admission.python != PYTHON:
        difference += (
            f"; it runs Python {PYTHON}, the client {admission.python}, and the bytecode of the "
            "same functions differs between them: run one version at both ends"
        )
    raise Refusal(f"the server has {difference}")


def _send(connection: Connection, outbox: SimpleQueue[tuple[int, Answer] | None]) -> None:
    try:
        while (item := outbox.get()) is not None:
            number, (kind, answer) = item
            write(connection, kind, number, answer)
            del item, answer
    except OSError as error:
        _logger.debug("a connection ended: %s", error)
    finally:
        connection.close()  # wakes the thread that reads requests
