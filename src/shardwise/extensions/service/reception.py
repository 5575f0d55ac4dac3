"""The peers of a server that have not greeted yet: one thread serves all and waits for none.

Anyone who can connect is such a peer. All of them get a fifth of a core and a few dozen slots; the
oldest peer gives up its slot when another one comes. Whatever peers send and the system
refuses, the next connections are taken.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

from shardwise.base.errors import ServiceError
from shardwise.extensions.service.frames import OtherProtocolError
from shardwise.extensions.service.greeting import Admission, Refusal, refuse
from shardwise.extensions.service.transport import Connection, Listener

_logger = logging.getLogger("shardwise")

# Time for a whole greeting; a client may make its pickle meanwhile. A port scanner sends nothing.
_GREETING_S = 30.0
# A peer's least time before another replaces it: a client answers within a round trip.
_LEAST_S = 0.1
_MAX_PEERS = 48
# Peers and clients may use one in 16 and one in 3 of the process' open files; shards need the rest.
_PEERS_SHARE, _CLIENTS_SHARE = 16, 3
_MAX_CLIENTS = 1_024
# After a call that the system refused, for lack of files or memory.
_PAUSE_S = 0.05
# The thread rests four times as long as it works, so that strangers take a fifth of a core; some
# greetings are done before the first rest.
_REST, _MOST_DUE_S = 4.0, 0.05
_LOG_S, _MAX_LOGGED = 1.0, 8  # between two warnings; more than these at once

_Steps = Generator[memoryview, None, Admission]


def max_connections() -> tuple[int, int]:
    """The most peers that have not greeted, and the most clients, that a server keeps."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = _MAX_CLIENTS * _CLIENTS_SHARE if limit == resource.RLIM_INFINITY else limit
    return (
        max(1, min(_MAX_PEERS, files // _PEERS_SHARE)),
        max(1, min(_MAX_CLIENTS, files // _CLIENTS_SHARE)),
    )


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection, the rest of its greeting, and the buffer that is filled next.

    One that was refused has no steps: what it sends is thrown away until it hangs up. With bytes
    unread the kernel would send a reset, which overtakes the answer.
    """

    connection: Connection
    steps: _Steps | None
    buffer: memoryview = field(default_factory=lambda: memoryview(b""))
    began: float = field(default_factory=time.monotonic)


class Reception:
    """Takes a listener's connections and greets them; `take` gets each proven one."""

    def __init__(
        self,
        listener: Listener,
        *,
        greet: Callable[[Connection], _Steps],
        take: Callable[[Connection, Admission], None],
    ) -> None:
        self._listener = listener
        self._greet = greet
        self._take = take
        self._max_peers = max_connections()[0]
        self._peers: list[_Peer] = []
        self._accepts_from = 0.0
        self._is_closed = False
        self._logged = deque([0.0] * _MAX_LOGGED, maxlen=_MAX_LOGGED)

    def start(self) -> None:
        os.set_blocking(self._listener.socket.fileno(), False)
        threading.Thread(target=self._run, name="shardwise_reception", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()  # wakes it

    def _run(self) -> None:
        rests_until = 0.0
        while not self._is_closed:
            try:
                ready = self._wait()
                began = time.thread_time()
                for peer in [each for each in self._peers if each.connection.socket in ready]:
                    self._serve(peer)
                if self._listener.socket in ready:
                    self._accept()
                now = time.monotonic()
                rests_until = max(rests_until, now) + _REST * (time.thread_time() - began)
                if rests_until - now > _MOST_DUE_S:
                    time.sleep(rests_until - now)
            except Exception as error:  # noqa: BLE001 - it never ends, whatever the system refuses
                if not self._is_closed:
                    self.warn(f"no connection can be taken now: {error!r}")
                self._accepts_from = time.monotonic() + _PAUSE_S
                time.sleep(_PAUSE_S)
        for peer in self._peers:
            peer.connection.close()

    def _wait(self) -> set[socket.socket]:
        """Drop late peers, and wait; returns the sockets that are ready."""
        now = time.monotonic()
        for late in [peer for peer in self._peers if now - peer.began >= _GREETING_S]:
            self._drop(late, "it did not greet in time")
        accepts_from, until = self._accepts_from, now + _GREETING_S
        if self._peers:
            until = self._peers[0].began + _GREETING_S
            if len(self._peers) >= self._max_peers:
                accepts_from = max(accepts_from, self._peers[0].began + _LEAST_S)
        sockets = {each.fileno(): each for each in (p.connection.socket for p in self._peers)}
        if now >= accepts_from:
            sockets[self._listener.socket.fileno()] = self._listener.socket
        else:
            until = min(until, accepts_from)
        poll = select.poll()
        for number in sockets:
            poll.register(number, select.POLLIN)
        return {sockets[each] for each, _ in poll.poll(1 + 1000 * max(0.0, until - now))}

    def _accept(self) -> None:
        if len(self._peers) >= self._max_peers:  # before, so that there is always a file for it
            self._drop(self._peers[0], "others came")
        with suppress(BlockingIOError, ConnectionError):  # it has gone
            connection = self._listener.accept()
            connection.limit(0)
            self._peers.append(_Peer(connection, self._greet(connection)))

    def _drop(self, peer: _Peer, why: object) -> None:
        _logger.debug("a connection ended: %s", why)
        self._peers.remove(peer)
        peer.connection.close()

    def _serve(self, peer: _Peer) -> None:
        try:
            if peer.steps is None:
                if not os.read(peer.connection.socket.fileno(), 64 << 10):
                    self._drop(peer, "refused")
                return
            while True:
                while peer.buffer.nbytes:
                    try:
                        received = peer.connection.receive_some(peer.buffer)
                    except BlockingIOError:
                        return
                    peer.buffer = peer.buffer[received:]
                peer.buffer = next(peer.steps)
        except StopIteration as greeted:
            self._peers.remove(peer)
            self._take(peer.connection, greeted.value)
        except Exception as error:  # noqa: BLE001 - foreign bytes: they end their connection alone
            if isinstance(error, OtherProtocolError) and error.client_error:
                error = Refusal(error.client_error)
            if not isinstance(error, Refusal | ServiceError):
                self._drop(peer, error)
                return
            self.warn(f"a client was refused: {error}")
            peer.steps = None
            with suppress(OSError):
                if isinstance(error, Refusal):
                    refuse(peer.connection, error)
                peer.connection.socket.shutdown(socket.SHUT_WR)

    def warn(self, text: str) -> None:
        """Log a warning, unless several were just logged: strangers may cause any number."""
        if (now := time.monotonic()) - self._logged[0] >= _LOG_S * _MAX_LOGGED:
            self._logged.append(now)
            _logger.warning("%s", text)
