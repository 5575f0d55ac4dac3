"""The connections of one process to its servers, kept up: opened, used, and opened again.

Each has two threads: one connects and receives, one sends. They end when the link is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.slots import SlotPool
from shardwise.engine.request import Batch
from shardwise.extensions.service.batches import check_batch, decode_batch, encode_request
from shardwise.extensions.service.dispatcher import Dispatcher
from shardwise.extensions.service.error_frames import decode_error
from shardwise.extensions.service.frames import FrameError, Kind, Limits, read_frame, write
from shardwise.extensions.service.greeting import ClientSide, greet
from shardwise.extensions.service.transport import Connect, Connection
from shardwise.extensions.service.work import Server, Work

# Connecting and greeting; loading the dataset at the server is part of it.
_GREETING_S = 30.0
# Between attempts: doubled from 50 ms to 1 s. A server that refused is asked again every 5 s.
_FIRST_PAUSE_S, _MAX_PAUSE_S, _REFUSED_PAUSE_S = 0.05, 1.0, 5.0
# A batch of 64 GiB, with 10^7 keys in its header.
_ANSWER = Limits(header=1 << 30, payload=64 << 30)
# Below this the allocator reuses memory by itself, and a slot would cost two open files.
_MIN_SLOT_BYTES = 128 << 10
_MAX_IDLE = 16


class Links:
    """Opens links to new servers, and closes those of gone ones; any thread may call it."""

    def __init__(self, dispatcher: Dispatcher, *, connect: Connect, side: ClientSide) -> None:
        self.dispatcher = dispatcher
        self.connect = connect
        self.side = side
        # Batches of ragged samples differ a little in size.
        self.memory = SlotPool(max_idle=_MAX_IDLE, headroom=0.25)
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._is_closed = False

    def set_servers(self, addresses: Sequence[str], token: bytes | None) -> None:
        with self._lock:
            if self._is_closed:
                return
            if token != self.side.token:
                self.side = replace(self.side, token=token)
            for address in [each for each in self._links if each not in addresses]:
                link = self._links.pop(address)
                self.dispatcher.remove(link.server)
                link.close()
            for address in addresses:
                if address not in self._links:
                    link = _Link(self.dispatcher.add(address), self)
                    try:
                        link.start()
                    except RuntimeError:  # the system refuses a thread
                        self.dispatcher.remove(link.server)
                        raise
                    self._links[address] = link

    def close(self) -> None:
        """End all connections; memory that no batch uses is given back."""
        with self._lock:
            self._is_closed = True
            links = list(self._links.values())
        for link in links:
            link.close()
        for link in links:
            link.join(1.0)
        self.memory.close()


class _Link:
    """Keeps the connection to one server, from now on."""

    def __init__(self, server: Server, links: Links) -> None:
        self.server = server
        self._links, self._dispatcher = links, links.dispatcher
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="shardwise_link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.close()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            num_connected = self.server.num_connected
            try:
                self._use()
            except Exception as error:  # noqa: BLE001 - whatever ends a connection, another is made
                # The traceback would keep the last batch alive.
                self._dispatcher.failed(self.server, error.with_traceback(None))
            if self.server.refusal is not None:
                pause_s = _REFUSED_PAUSE_S
            elif self.server.num_connected > num_connected:
                pause_s = _FIRST_PAUSE_S
            self._closed.wait(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    def _use(self) -> None:
        """Open a connection and use it to its end, which is an error."""
        links = self._links
        connection = self._connection = links.connect(self.server.address, timeout_s=_GREETING_S)
        try:
            if self._closed.is_set():
                return
            num_credits = greet(connection, links.side)
            connection.limit(None)
            outbox = self._dispatcher.connected(self.server, num_credits)
            threading.Thread(
                target=_send, args=(connection, outbox), name="shardwise_requests", daemon=True
            ).start()
            self._receive(connection)
        finally:
            connection.close()

    def _receive(self, connection: Connection) -> None:
        dispatcher, result = self._dispatcher, None
        while True:
            frame = read_frame(connection, _ANSWER, partial(_take_memory, self._links.memory))
            if frame.kind not in (Kind.BATCH, Kind.ERROR):
                raise FrameError(f"{frame.kind.name} in place of an answer")
            request = dispatcher.request_of(self.server, frame.number)
            if request is None:
                raise FrameError(f"an answer to request {frame.number}, which it was not asked")
            result = decode_batch(frame) if frame.kind == Kind.BATCH else decode_error(frame)
            if isinstance(result, Batch):
                check_batch(result, request, dispatcher.builder)
            dispatcher.answered(self.server, frame.number, result)
            # While it waits, it must not hold on to the last batch.
            del frame, result


def _send(connection: Connection, outbox: SimpleQueue[Work | None]) -> None:
    try:
        while (work := outbox.get()) is not None:
            write(connection, Kind.REQUEST, work.number, encode_request(work.request))
            del work
    except OSError:
        pass
    finally:
        connection.close()  # wakes the thread that receives


def _take_memory(slots: SlotPool, num_bytes: int) -> NDArray[np.uint8]:
    """Reuse uint8 `[num_bytes]` of no other batch: fresh memory costs as much as receiving it."""
    if num_bytes < _MIN_SLOT_BYTES or slots.is_scarce:
        return np.empty(num_bytes, dtype=np.uint8)
    return slots.lend(slots.take(num_bytes))[:num_bytes]
