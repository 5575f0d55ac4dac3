"""The connection to one server, kept up: opened, used, and opened again when the server is back.

Two threads: one connects and receives, one sends. They end when the link is closed.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from shardwise.errors import ServiceError
from shardwise.serving.batches import decode_batch, encode_request
from shardwise.serving.dispatcher import Dispatcher
from shardwise.serving.error_frames import decode_error
from shardwise.serving.frames import FrameError, Kind, Limits, read_frame, write
from shardwise.serving.greeting import ClientSide, greet
from shardwise.serving.receive_memory import ReceiveMemory
from shardwise.serving.transport import Connection, Transport
from shardwise.serving.work import Server, Work

__all__ = ["Link"]

# Connecting and greeting; loading the dataset at the server is part of it.
_GREETING_S = 30.0
# Between attempts: doubled from 50 ms to 1 s. A server that refused is asked again every 5 s.
_FIRST_PAUSE_S, _MAX_PAUSE_S, _REFUSED_PAUSE_S = 0.05, 1.0, 5.0
# A batch of 64 GiB, with 10^7 keys in its header.
_ANSWER = Limits(header=1 << 30, payload=64 << 30)


class Link:
    """Keeps the connection to one server.

    Args:
        server: the server.
        dispatcher: what gets its answers.
        transport: opens connections.
        side: what this client brings.
        memory: where batches are received.
    """

    def __init__(
        self,
        server: Server,
        *,
        dispatcher: Dispatcher,
        transport: Transport,
        side: ClientSide,
        memory: ReceiveMemory,
    ) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._transport = transport
        self._side = side
        self._memory = memory
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="shardwise_link", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.close()

    def join(self, timeout_s: float) -> None:
        """Wait for its thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            try:
                connection = self._transport.connect(self._server.address, timeout_s=_GREETING_S)
            except (ServiceError, OSError) as error:
                self._dispatcher.failed(self._server, error)
                if self._server.refusal is not None:
                    pause_s = _REFUSED_PAUSE_S
            else:
                self._connection = connection
                if self._use(connection):
                    pause_s = _FIRST_PAUSE_S
                elif self._server.refusal is not None:
                    pause_s = _REFUSED_PAUSE_S
            self._closed.wait(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    def _use(self, connection: Connection) -> bool:
        """Use a connection to its end; False where the greeting failed."""
        if self._closed.is_set():
            connection.close()
            return False
        try:
            num_credits = greet(connection, self._side)
            connection.limit(None)
        except (ServiceError, FrameError, EOFError, OSError) as error:
            connection.close()
            self._dispatcher.failed(self._server, error)
            return False
        outbox = self._dispatcher.connected(self._server, num_credits)
        sender = threading.Thread(
            target=_send, args=(connection, outbox), name="shardwise_requests", daemon=True
        )
        sender.start()
        why: Exception = EOFError("closed")
        try:
            self._receive(connection)
        except (ServiceError, FrameError, EOFError, OSError) as error:
            why = error
        finally:
            connection.close()
            self._dispatcher.disconnected(self._server, why)
        return True

    def _receive(self, connection: Connection) -> None:
        """Receive answers until the connection ends."""
        while True:
            frame = read_frame(connection, _ANSWER, self._memory.take)
            if frame.kind == Kind.BATCH:
                is_mine = self._dispatcher.answered(self._server, frame.number, decode_batch(frame))
            elif frame.kind == Kind.ERROR:
                is_mine = self._dispatcher.answered(self._server, frame.number, decode_error(frame))
            else:
                raise FrameError(f"{frame.kind.name} in place of an answer")
            if not is_mine:
                raise FrameError(f"an answer to request {frame.number}, which it was not asked")
            # While it waits, it must not hold on to the last batch.
            del frame


def _send(connection: Connection, outbox: SimpleQueue[Work | None]) -> None:
    """Send requests until the connection ends."""
    while (work := outbox.get()) is not None:
        try:
            write(connection, Kind.REQUEST, work.number, encode_request(work.request))
        except OSError:
            connection.close()  # wakes the thread that receives
            return
        del work
