"""The network interface of the service: connections that send and receive bytes in order.

TCP is one implementation (`tcp.py`, by TLS `tls.py`), UCX another (`ucx.py`). All have these two
protocols and a function that connects; frames, tokens, requests and batches are the same over each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from socket import socket
from typing import Any, Protocol


class Connection(Protocol):
    """Bytes in order, both ways; one thread may send while another one receives."""

    socket: socket

    @property
    def local_endpoint(self) -> bytes:
        """The bytes that the other end needs to send by this, under the proof; empty for none."""
        return b""

    def set_remote_endpoint(self, endpoint: bytes) -> None:
        """Take a proven client's `local_endpoint`; OSError if it is malformed."""
        if endpoint:
            raise OSError("a client of tcp:// with an endpoint of another transport")

    def send(self, buffers: Sequence[Any]) -> None:
        """Send buffers of bytes in order; OSError if the connection is broken."""
        ...

    def receive_some(self, buffer: memoryview) -> int:
        """Receive at least one byte; returns how many.

        Raises:
            EOFError: the other end closed the connection.
            BlockingIOError: none has arrived, and the time limit is 0.
            OSError: the connection is broken, or the time limit is over.
        """
        ...

    def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer of bytes; raises as `receive_some` does."""
        while buffer.nbytes:
            buffer = buffer[self.receive_some(buffer) :]

    def limit(self, timeout_s: float | None) -> None:
        """Bound each call by this many seconds; None for no bound, 0 to never wait."""
        ...

    def close(self) -> None:
        """End the connection; a thread that sends or receives gets an error."""
        ...


class Listener(Protocol):
    """A socket that accepts connections."""

    socket: socket
    address: str
    needs_token: bool  # the transport trusts its clients

    def accept(self) -> Connection:
        """Wait for the next connection; OSError if the listener was closed."""
        ...

    def close(self) -> None:
        """Take no more connections; a thread in `accept` gets an error."""
        ...


# (address, *, timeout_s) -> a connection to a server. Raises OSError where no server listens there,
# or it does not answer within the time, and ServiceError where the ends do not trust each other.
Connect = Callable[..., Connection]
