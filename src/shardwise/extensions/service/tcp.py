"""TCP: large socket buffers, no delay for small frames, and peers that vanish are noticed."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from shardwise.extensions.service.addresses import host_and_port, tcp_address
from shardwise.extensions.service.transport import Connection

# A batch of 4 MiB is in flight while the next one is built; the kernel caps this at its own limit.
_BUFFER_BYTES = 4 << 20
# A machine that loses power sends nothing: after 10 s without data it is probed every 5 s, and
# given up after 3 probes without an answer. Unacknowledged data is given up after 25 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
# The kernel takes up to 1,024 buffers a call.
_MAX_BUFFERS = 512
# Connections that the kernel keeps until they are accepted: all ranks of a large job at once.
_BACKLOG = 1_024


class TcpConnection(Connection):
    """One connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        for name, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, buffers: Sequence[Any]) -> None:
        views = [memoryview(each).cast("B") for each in buffers if memoryview(each).nbytes]
        first = 0
        while first < len(views):
            sent = self._sock.sendmsg(views[first : first + _MAX_BUFFERS])
            while first < len(views) and sent >= views[first].nbytes:
                sent -= views[first].nbytes
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def receive_some(self, buffer: memoryview) -> int:
        received = self._receive(buffer)
        if not received:
            raise EOFError("the other end closed the connection")
        return received

    def _receive(self, buffer: memoryview) -> int:
        # Without a time limit the kernel fills the whole buffer in one call.
        return self._sock.recv_into(buffer, 0, socket.MSG_WAITALL)

    def limit(self, timeout_s: float | None) -> None:
        self._sock.settimeout(timeout_s)

    @property
    def is_same_host(self) -> bool:
        """Whether both ends have one address of the network: one machine, or a proxy on it."""
        return bool(self._sock.getpeername()[0] == self._sock.getsockname()[0])

    def is_broken(self, wait_s: float) -> bool:
        """Wait this long; True as soon as the other end has gone, or this one was closed."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLRDHUP)
        except ValueError:  # closed
            return True
        return bool(poll.poll(1000 * wait_s))

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class TcpListener:
    """A socket that listens."""

    needs_token = False

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::"
        )
        self.socket = self._sock
        # Accepted sockets have its buffers: the window's scale is agreed on while connecting.
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self.address = tcp_address(host, self._sock.getsockname()[1])

    def accept(self) -> TcpConnection:
        sock, _ = self._sock.accept()
        return TcpConnection(sock)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def connect(address: str, *, timeout_s: float) -> TcpConnection:
    """Open a connection; each call on it is bound by `timeout_s` until `limit` changes that."""
    return TcpConnection(socket.create_connection(host_and_port(address), timeout=timeout_s))
