"""The executor of batch servers: requests go out, batches come back, and are yielded in order.

It builds a batch itself only if it must: one whose makers died twice, and with `fallback` any
while no server answers. Batches are bit by bit those of the inline executor (I5).
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from typing import Any

from shardwise.base.errors import ServiceError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.prefetch import DepthGrowth, batch_bytes
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.engine.request import Batch, BatchRequest, Concurrency
from shardwise.engine.stall import stall_error
from shardwise.extensions.service.dispatcher import Dispatcher
from shardwise.extensions.service.greeting import ClientSide
from shardwise.extensions.service.link import Links
from shardwise.extensions.service.ray_directory import RayDirectory
from shardwise.extensions.service.ray_servers import ServerList
from shardwise.extensions.service.token import read_token
from shardwise.extensions.service.transport import Connect
from shardwise.extensions.service.transports import connect_to
from shardwise.extensions.service.version import VersionWord, builder_options
from shardwise.extensions.service.work import Work

# Interval at which a waiting consumer looks for late works and dead servers.
_WATCH_S = 0.05
# Batches under way hold at most this much memory, but two are always allowed.
_MAX_BYTES = 2 << 30


@dataclass(kw_only=True, eq=False)
class ServiceExecutor:
    """Builds batches on servers."""

    builder: BatchBuilder = field(kw_only=False)
    addresses: tuple[str, ...] = field(default=(), kw_only=False)
    directory: RayDirectory | None = None
    fallback: bool = False
    token_file: str | None = None
    timeout: float | None = None
    connect: Connect | None = None
    _session: _Session | None = field(default=None, init=False, repr=False)
    _growth: DepthGrowth = field(default_factory=DepthGrowth, init=False, repr=False)

    @property
    def concurrency(self) -> Concurrency:
        """The servers, where a collate of the user's runs, too."""
        session, depth = self._session, 0
        count = len(self.addresses) if self.directory is None else self.directory.num_wanted
        if session is not None:
            depth = session.dispatcher.depth
            count = len(session.dispatcher.servers) or count
        return Concurrency("service", num_threads=count, num_prefetch=depth, collate=True)

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        session = self._start()
        pending: deque[Work] = deque()

        def is_next_ready() -> bool:
            return bool(pending) and pending[0].result is not None

        depth = 0
        num_ready: int | None = None
        num_bytes = 0
        try:
            while True:
                if session.pid != os.getpid():
                    # A fork has no threads: it calls the servers itself, and requests all again.
                    session = self._start()
                    lost = [work.request for work in pending]
                    pending.clear()
                    pending.extend(map(session.dispatcher.submit, lost))
                dispatcher = session.dispatcher
                if pending:
                    is_ready = takewhile(lambda work: work.result is not None, pending)
                    num_ready = sum(1 for _ in is_ready)
                    if len(pending) >= depth - 1:
                        num_left = sum(work.result is None for work in pending)
                        self._growth.asked(
                            is_late=not num_ready, is_idle=2 * num_left < len(pending)
                        )
                wanted = dispatcher.depth * self._growth.factor
                depth = max(2, min(wanted, _MAX_BYTES // max(1, num_bytes)))
                while len(pending) < depth:
                    request = next(requests, None)
                    if request is None:
                        break
                    pending.append(dispatcher.submit(request))
                if not pending:
                    return
                result = self._wait(dispatcher, pending[0])
                pending.popleft()
                if isinstance(result, Exception):
                    raise result
                num_bytes = max(num_bytes, batch_bytes(result))
                result.num_ready = num_ready
                result.is_next_ready = is_next_ready
                yield result
                # While the user has it, this must not be what keeps its memory from the next one.
                del result
        finally:
            if session.pid == os.getpid():
                session.dispatcher.drop(pending)

    def service_stats(self) -> dict[str, Any]:
        session = self._session
        if session is None or session.pid != os.getpid():
            dispatcher = Dispatcher(self.builder, fallback=False)
            for address in self.addresses:
                dispatcher.add(address)
            return dispatcher.stats()
        return session.dispatcher.stats()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __getstate__(self) -> dict[str, Any]:
        """Connections do not travel: a copy opens its own."""
        return {**self.__dict__, "_session": None}

    def _start(self) -> _Session:
        if self._session is None or self._session.pid != os.getpid():
            self._session = _Session(self)
        return self._session

    def _wait(self, dispatcher: Dispatcher, work: Work) -> Batch | Exception:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        with dispatcher.changed:
            while work.result is None:
                if self._session is None or self._session.dispatcher is not dispatcher:
                    raise RuntimeError("the loader was closed while a batch was awaited")
                dispatcher.watch(work)
                if deadline is not None and time.monotonic() >= deadline:
                    assert self.timeout is not None
                    who = "batch server " + ", ".join(each.address for each in work.holders)
                    if work.is_local:
                        who = "this process"
                    elif not work.holders:
                        who = f"a batch server that answers, of {dispatcher.trouble()}"
                    raise stall_error(self.builder.dataset, work.request, 0, self.timeout, who)
                dispatcher.changed.wait(_WATCH_S)
            return work.result


class _Session:
    """The connections of an executor in one process; they end with it."""

    def __init__(self, executor: ServiceExecutor) -> None:
        self.pid = os.getpid()
        self.dispatcher = dispatcher = Dispatcher(executor.builder, fallback=executor.fallback)
        directory, token_file = executor.directory, executor.token_file
        token = None if token_file is None else read_token(token_file)
        if directory is not None:
            directory.open()
        builder = executor.builder
        side = ClientSide(
            word=VersionWord.of(builder.dataset),
            options=builder_options(builder),
            pickled=cache(partial(_pickle_builder, builder)),
            needs_pickle=builder.collate is not None,
            token=token,
        )
        connect = executor.connect or connect_to(executor.addresses)
        links = Links(dispatcher, connect=connect, side=side)
        unfollow = None
        if directory is None:
            links.set_servers(executor.addresses, token)
        else:
            unfollow = directory.follow(
                partial(_follow, links), partial(setattr, dispatcher, "notice")
            )
        # A loader that is dropped, and the interpreter's end, end the connections.
        self.close = weakref.finalize(executor, _end, self.pid, unfollow, links)


def _follow(links: Links, servers: ServerList) -> None:
    links.dispatcher.notice = servers.trouble
    links.set_servers(servers.addresses, servers.token)


def _pickle_builder(builder: BatchBuilder) -> bytes:
    try:
        return pickle_by_value(builder)
    except TypeError as error:
        raise ServiceError(str(error)) from None


def _end(pid: int, unfollow: Callable[[], None] | None, links: Links) -> None:
    if pid != os.getpid():
        return  # a forked child lacks these threads
    if unfollow is not None:
        unfollow()
    links.close()
    links.dispatcher.close()
