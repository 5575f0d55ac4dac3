"""Choose who makes a batch: a server with credits, another one after it dies, or this process.

All decisions are made here, under one lock. None of them changes a batch: it is the same from
every server (I5). The queue holds only what no server has; order is kept by those who wait.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import statistics
import threading
import time
from collections.abc import Collection
from queue import SimpleQueue
from typing import Any

import numpy as np

from shardwise.base.errors import ServiceError, message_of
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.thread_pool import ThreadPool
from shardwise.extensions.service.frames import FrameError
from shardwise.extensions.service.work import Server, Work

_logger = logging.getLogger("shardwise")

# A batch whose makers died twice may be what kills them: it is made here.
_MAX_DEATHS = 2
# After so many malformed answers in a row a server is not used.
_MAX_MALFORMED = 3
# A request is hedged after 3 times the median latency, once 8 were measured, and not below 50 ms;
# before that after 5 s. Each further server is asked after twice the time.
_LATE, _MIN_LATENCIES, _LEAST_LATE_S, _FIRST_LATE_S = 3.0, 8, 0.05, 5.0
# After this long without a server or an answer: log it, and make batches here with `fallback`. The
# shorter time holds where each server is known to be absent.
_SAY_S, _FALLBACK_S = 5.0, 1.0
# Batches that are made here ahead of the trainer while no server is available.
_NUM_LOCAL = 2
# Until a server has announced how many requests it takes.
_DEFAULT_CREDITS = 3


class Dispatcher:
    """The works of one process and the servers that make them."""

    def __init__(
        self,
        builder: BatchBuilder,
        *,
        fallback: bool,
    ) -> None:
        self.changed = threading.Condition()
        self.servers: list[Server] = []
        # Why there are fewer servers than requested; empty if the reason is unknown.
        self.notice = ""
        self.num_resent = self.num_local = 0
        self.builder = builder
        self._fallback = fallback
        self._ends = np.cumsum(builder.dataset.shard_sizes)
        self._numbers = itertools.count()
        self._queue: list[Work] = []
        self._pool: ThreadPool | None = None
        self._num_local_now = 0
        self._dead_since: float | None = time.monotonic()
        self._has_said = self._has_answer = False
        self._heard_at = 0.0

    @property
    def depth(self) -> int:
        return max(2, sum(server.credits or _DEFAULT_CREDITS for server in self.servers))

    def submit(self, request: BatchRequest) -> Work:
        shard = 0
        if len(request.ids):
            shard = int(np.searchsorted(self._ends, request.ids[0], side="right"))
        with self.changed:
            work = Work(next(self._numbers), request, shard)
            self._queue.append(work)
            self._assign()
        return work

    def drop(self, works: Collection[Work]) -> None:
        """Forget works; what is on its way is received and thrown away."""
        with self.changed:
            for work in works:
                work.is_dropped = True
            self._queue = [work for work in self._queue if not work.is_dropped]

    def watch(self, work: Work) -> None:
        """Hedge, warn or fall back for an awaited work, locked; ServiceError without servers."""
        now = time.monotonic()
        if any(server.is_live for server in self.servers):
            late_s = self._late_s()
            self._hedge(work, now, late_s)
            # A server that was stopped, or hangs, keeps its connection.
            silent_s = now - max(work.sent_at, self._heard_at)
            if not work.is_local and silent_s >= max(_SAY_S, late_s):
                self._do_without([work])
            return
        assert self._dead_since is not None
        dead_s = now - self._dead_since
        # A port that is silent is given up after 30 s only.
        has_tried = dead_s >= _SAY_S or all(server.trouble is not None for server in self.servers)
        refused = [server for server in self.servers if server.refusal is not None]
        if (
            refused
            and not work.is_local
            and (len(refused) == len(self.servers) or (has_tried and not self._has_answer))
        ):
            texts = [f"{server.address}: {server.refusal}" for server in refused]
            raise ServiceError("; ".join(texts))
        if dead_s >= _SAY_S or (self._fallback and has_tried and dead_s >= _FALLBACK_S):
            self._do_without(self._queue[: max(0, _NUM_LOCAL - self._num_local_now)])

    def _do_without(self, works: list[Work]) -> None:
        """No server answers: warn, and with `fallback` make these here."""
        if not self._has_said:
            self._has_said = True
            what = "batches are made here until one does" if self._fallback else "waiting for one"
            _logger.warning("no batch server answers, %s: %s", what, self.trouble())
        if self._fallback:
            self._queue = [each for each in self._queue if each not in works]
            for work in works:
                self._make_here(work)

    def trouble(self) -> str:
        troubles = [
            f"{server.address} ({server.refusal or server.trouble or server.silence})"
            for server in self.servers
        ]
        return "; ".join([*troubles, *([self.notice] if self.notice else [])]) or "there is none"

    # Adding and removing servers.

    def add(self, address: str) -> Server:
        """Take a server in; it gets work once it is connected."""
        with self.changed:
            server = Server(address)
            self.servers.append(server)
        return server

    def remove(self, server: Server) -> None:
        """Let a server go: what it had goes back to the queue, and it gets no more."""
        with self.changed:
            self.servers.remove(server)
            self._take_back(server, is_dead=False)

    # Events on connections.

    def connected(self, server: Server, num_credits: int) -> SimpleQueue[Work | None]:
        """A server is there; its outbox, which ends with None."""
        with self.changed:
            outbox: SimpleQueue[Work | None] = SimpleQueue()
            if server not in self.servers:  # removed while it was greeted
                outbox.put(None)
                return outbox
            server.outbox = outbox
            server.credits = num_credits
            server.trouble = server.refusal = None
            server.num_connected += 1
            self._dead_since = None
            self._heard_from(server)
            self._assign()
            self.changed.notify_all()
        return outbox

    def failed(self, server: Server, error: Exception) -> None:
        """A connection was not made, or ended: requeue its works at their positions."""
        with self.changed:
            refusal = error if isinstance(error, ServiceError) and not server.is_live else None
            server.trouble = str(error) or type(error).__name__
            if server.is_live:
                server.trouble = f"connection lost: {server.trouble}"
            if isinstance(error, FrameError):
                server.num_malformed += 1
                if server.num_malformed >= _MAX_MALFORMED:
                    refusal = ServiceError(f"{server.num_malformed} malformed answers: {error}")
                else:
                    text = "batch server %s sent a malformed answer, it is asked again: %s"
                    _logger.warning(text, server.address, error)
            if refusal is not None and server.refusal is None:
                _logger.error("batch server %s is not used: %s", server.address, refusal)
            server.refusal = refusal
            self._take_back(server, is_dead=True)

    def request_of(self, server: Server, number: int) -> BatchRequest | None:
        """The request of this number that a server has; None where it has none."""
        with self.changed:
            work, _ = server.held.get(number, (None, 0.0))
            return None if work is None else work.request

    def _take_back(self, server: Server, *, is_dead: bool) -> None:
        if server.outbox is not None:
            server.outbox.put(None)
        server.outbox = None
        held, server.held = server.held, {}
        for work, _ in held.values():
            work.holders.remove(server)
            work.num_deaths += is_dead
            if work.is_open and not work.holders and not work.is_local:
                self.num_resent += 1
                if work.num_deaths >= _MAX_DEATHS:
                    self._make_here(work)
                else:
                    bisect.insort(self._queue, work, key=lambda each: each.number)
        if self._dead_since is None and not any(each.is_live for each in self.servers):
            self._dead_since = time.monotonic()
        self._assign()
        self.changed.notify_all()

    def answered(self, server: Server, number: int, result: Batch | Exception) -> bool:
        """An answer came; False where no request waits for it."""
        if isinstance(result, Batch):
            result = self._prepare_batch(result)
        with self.changed:
            work = server.answered(number)
            if work is None:
                return False
            self._has_answer = True
            server.num_malformed = 0
            self._heard_from(server)
            self._finish(work, result)
            self._assign()
        return True

    def _prepare_batch(self, batch: Batch) -> Batch | Exception:
        try:
            self.builder.prepare(batch)
        except Exception as error:  # noqa: BLE001 - raised where the batch is waited for
            return error
        return batch

    def _heard_from(self, server: Server) -> None:
        self._heard_at = time.monotonic()
        if self._has_said:
            self._has_said = False
            _logger.warning("batch server %s answers", server.address)

    def _finish(self, work: Work, result: Batch | Exception) -> None:
        if work.is_open:  # the first answer counts; all are the same
            work.result = result
            self.changed.notify_all()

    # Assigning works to servers.

    def _assign(self) -> None:
        """Give queued works to servers, the oldest first: each to its shard's if that has room."""
        while self._queue:
            free = [server for server in self.servers if server.has_credit]
            if not free:
                return
            work = self._queue.pop(0)
            max(free, key=lambda server: server.weight(work.shard)).send(work)

    def _late_s(self) -> float:
        latencies = [each for server in self.servers for each in server.latencies]
        if len(latencies) < _MIN_LATENCIES:
            return _FIRST_LATE_S
        return max(_LEAST_LATE_S, _LATE * statistics.median(latencies))

    def _hedge(self, work: Work, now: float, late_s: float) -> None:
        """Ask one server more for a work that is late: those that have it may all hang."""
        if not work.holders or now - work.sent_at < late_s * 2 ** (len(work.holders) - 1):
            return
        others = [s for s in self.servers if s.has_credit and s not in work.holders]
        if others:
            work.holders[-1].num_hedges += 1
            max(others, key=lambda server: server.weight(work.shard)).send(work)

    def _make_here(self, work: Work) -> None:
        work.is_local = True
        try:
            self._pool = self._pool or ThreadPool(1, name="shardwise_local")
        except RuntimeError as error:  # the system refuses a thread
            self._finish(work, error)
            return
        self._num_local_now += 1
        self._pool.submit(self._build, work)

    def _build(self, work: Work) -> None:
        result: Batch | Exception
        try:
            result = self._prepare_batch(self.builder.build(work.request))
        except Exception as error:  # noqa: BLE001 - raised where the batch is waited for
            result = error
        except BaseException as error:  # noqa: BLE001 - as a server's: it must not end the wait
            result = RuntimeError(f"{type(error).__name__}: {message_of(error)}")
        with self.changed:
            self._num_local_now -= 1
            self.num_local += 1
            self._finish(work, result)

    def stats(self) -> dict[str, Any]:
        with self.changed:
            return {
                "servers": {server.address: server.stats() for server in self.servers},
                "resent": self.num_resent,
                "made_here": self.num_local,
            }

    def close(self) -> None:
        with self.changed:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout_s=1.0)
