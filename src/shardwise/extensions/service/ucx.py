"""UCX: batches by shared memory within a machine, and by RDMA between machines that have it.

A connection is a TCP connection, whose other end's death is seen as on any, and beside it a way for
the server's large buffers, which UCX puts where they belong without a copy between. On TCP go

    both    segments   magic, kind, length; then, of kind BYTES, `length` bytes

    server  MESSAGE    the next bytes of the stream are a message of this length by UCX
    client  READY      it waits for it
    server  DONE       it was sent: only now does the receiver believe what it has

UCX ends the process on an address that it can't read. So the client's address and tag travel in
the greeting, under the proof that the client has the job's token: UCX gets only bytes that a holder
of the token wrote. The server makes its end of UCX when it has the first large buffer to send;
until then whatever comes in on the port is bytes on a socket. The client makes its end only for a
server that has proven the token.
"""

from __future__ import annotations

import secrets
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from shardwise.extensions.service import tcp
from shardwise.extensions.service.addresses import with_scheme
from shardwise.extensions.service.frames import (
    SEGMENT_MAGIC,
    FrameError,
    OtherProtocolError,
    ended_early,
)
from shardwise.extensions.service.tcp import TcpConnection, TcpListener
from shardwise.extensions.service.transport import Connection
from shardwise.extensions.service.ucx_worker import UcxWorker, load_ucxx

_TAG = struct.Struct("<Q")
_SEGMENT = struct.Struct("<4sIQ")
_BYTES, _MESSAGE, _READY, _DONE = 1, 2, 3, 4
# Below this a message by UCX costs more than a copy through TCP.
_LEAST_MESSAGE = 64 << 10
# Longer buffers are sent in parts, so that each part has a separate time limit.
_MOST_MESSAGE = 64 << 20
# An address with all of UCX's ways on one machine has 217 bytes, and some kB with many cards.
_MIN_ADDRESS, _MAX_ADDRESS = 16, 16 << 10
# A client takes a message within this time, as TCP gives up unacknowledged bytes.
_READY_S = 25.0


class _Segments(Connection):
    """The bytes of a TCP connection in segments, with messages by UCX between them."""

    def __init__(self, tcp: TcpConnection) -> None:
        self._tcp = tcp
        self.socket = tcp.socket
        self._writing = threading.Lock()
        self._header = bytearray()
        self._num_left = 0
        self._timeout_s: float | None = None

    def send(self, buffers: Sequence[Any]) -> None:
        views = [view for each in buffers if (view := memoryview(each).cast("B")).nbytes]
        if views:
            self._write(_BYTES, sum(view.nbytes for view in views), views)

    def receive_some(self, buffer: memoryview) -> int:
        while not self._num_left:
            kind, length = self._read()
            if kind == _BYTES and length:
                self._num_left = length
            elif done := self._handle(kind, length, buffer):
                return done
        received = self._tcp.receive_some(buffer[: self._num_left])
        self._num_left -= received
        return received

    def limit(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._tcp.limit(timeout_s)

    def close(self) -> None:
        self._tcp.close()

    def _handle(self, kind: int, length: int, place: memoryview) -> int:
        """Handle a segment without bytes; returns how many bytes it wrote to `place`."""
        raise NotImplementedError

    def _write(self, kind: int, length: int = 0, views: Sequence[memoryview] = ()) -> None:
        with self._writing:  # the thread that receives sends READY
            self._tcp.send([_SEGMENT.pack(SEGMENT_MAGIC, kind, length), *views])

    def _read(self) -> tuple[int, int]:
        """Receive the header of a segment; continues with one that has arrived in part."""
        try:
            while missing := _SEGMENT.size - len(self._header):
                part = bytearray(missing)
                received = self._tcp.receive_some(memoryview(part))
                self._header += part[:received]
        except BlockingIOError:
            raise
        except (EOFError, OSError):
            why = ended_early(bytes(self._header), SEGMENT_MAGIC)
            if why is not None:
                raise why from None
            raise
        header, self._header = bytes(self._header), bytearray()
        magic, kind, length = _SEGMENT.unpack(header)
        if magic != SEGMENT_MAGIC:
            raise OtherProtocolError(header)
        return kind, length


class UcxConnection(_Segments):
    """A client's end: it receives messages by UCX, with its own worker."""

    def __init__(self, tcp: TcpConnection) -> None:
        super().__init__(tcp)
        # Used by this connection alone: its end frees the buffer of a message that never comes.
        self._worker: UcxWorker | None = None
        self._tag = secrets.randbits(64)

    @property
    def local_endpoint(self) -> bytes:
        """The tag of its messages, and the address of its UCX worker, which is made here."""
        if self._worker is None:
            self._worker = UcxWorker()
        return _TAG.pack(self._tag) + self._worker.address

    def close(self) -> None:
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _handle(self, kind: int, length: int, place: memoryview) -> int:
        if kind != _MESSAGE or not 0 < length <= place.nbytes:
            raise FrameError(f"segment {kind} of {length} bytes, not {place.nbytes} at most")
        failure: Exception | None = None
        try:
            self._receive_message(place[:length])
        except (OSError, EOFError, FrameError) as error:
            # The traceback would keep the request alive, and the request the worker.
            failure = error.with_traceback(None)
        if failure is not None:
            # The buffer's memory is its owner's again: UCX may touch it no more.
            self.close()
            raise failure
        return length

    def _receive_message(self, place: memoryview) -> None:
        if self._worker is None:
            raise FrameError("a message by UCX from a server that has no address for it")
        request = self._worker.receive(place, self._tag)
        self._write(_READY)
        if self._read() != (_DONE, 0):
            raise FrameError("a message by UCX that the server does not say it sent")
        self._worker.wait(request, self._tcp.is_broken, self._timeout_s)


class _ServerEnd(_Segments):
    """A server's end: it sends its large buffers by UCX, and reads while it does."""

    def __init__(self, tcp: TcpConnection, listener: UcxListener) -> None:
        super().__init__(tcp)
        self._listener = listener
        self._client: tuple[bytes, int] | None = None
        self._way: tuple[UcxWorker, Any] | None = None
        self._way_lock = threading.Lock()
        self._is_ready = threading.Event()
        self._is_closed = False

    def send(self, buffers: Sequence[Any]) -> None:
        small: list[memoryview] = []
        for each in buffers:
            view = memoryview(each).cast("B")
            if view.nbytes < _LEAST_MESSAGE or self._client is None:
                small.append(view)
                continue
            super().send(small)
            small = []
            for start in range(0, view.nbytes, _MOST_MESSAGE):
                self._send_message(view[start : start + _MOST_MESSAGE])
        super().send(small)

    def set_remote_endpoint(self, endpoint: bytes) -> None:
        """Take the tag and the address of a client that has proven the token."""
        num_address = max(0, len(endpoint) - _TAG.size)
        if not _MIN_ADDRESS <= num_address <= _MAX_ADDRESS:
            raise OSError(
                f"a UCX address of {num_address} bytes, of {_MIN_ADDRESS} to {_MAX_ADDRESS}"
            )
        self._client = endpoint[_TAG.size :], _TAG.unpack_from(endpoint)[0]

    def receive_into(self, buffer: memoryview) -> None:
        try:
            super().receive_into(buffer)
        except (OSError, EOFError, FrameError):
            self.close()  # wakes the thread that waits until the client is ready
            raise

    def close(self) -> None:
        self._is_closed = True
        super().close()
        self._is_ready.set()
        with self._way_lock:
            way, self._way = self._way, None
        if way is not None:
            worker, endpoint = way
            worker.close_endpoint(endpoint)

    def _handle(self, kind: int, length: int, place: memoryview) -> int:
        del place
        # A client can't be ready for a message before the greeting's end.
        if kind != _READY or length or self._client is None:
            raise FrameError(f"segment {kind} of {length} bytes from a client")
        self._is_ready.set()
        return 0

    def _send_message(self, part: memoryview) -> None:
        assert self._client is not None
        address, tag = self._client
        try:
            worker, endpoint = self._way_to(address)
            self._is_ready.clear()
            self._write(_MESSAGE, part.nbytes)
            # The client waits for it first: else it would lie in UCX's memory when that ends.
            is_ready = self._is_ready.wait(_READY_S)
            if self._is_closed:
                raise ConnectionAbortedError("the connection is closed")
            if not is_ready:
                raise TimeoutError(f"the client took no message within {_READY_S:g} s")
            request = worker.send(endpoint, part, tag)
            worker.wait(request, self._tcp.is_broken, self._timeout_s)
        except OSError:
            # The buffer's memory is its owner's again: UCX may touch it no more.
            self.close()
            raise
        self._write(_DONE)

    def _way_to(self, address: bytes) -> tuple[UcxWorker, Any]:
        with self._way_lock:
            if self._is_closed:
                raise ConnectionAbortedError("the connection is closed")
            if self._way is None:
                same = self._tcp.is_same_host
                self._way = self._listener.way_to(address, is_same_host=same)
            return self._way


class UcxListener:
    """A socket that listens for clients of `ucx://`.

    Args:
        host: the name or number of an interface; "0.0.0.0" for all. It is TCP's alone: UCX itself
            listens on the interfaces that UCX_NET_DEVICES names.
        port: 0 for any free one.
    """

    needs_token = True

    def __init__(self, host: str, port: int) -> None:
        load_ucxx()
        self._tcp = TcpListener(host, port)
        self.socket = self._tcp.socket
        self.address = with_scheme("ucx", self._tcp.address)
        # One per set of transports, made when a connection first needs it.
        self._workers: dict[str | None, UcxWorker] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def accept(self) -> _ServerEnd:
        return _ServerEnd(self._tcp.accept(), self)

    def way_to(self, address: bytes, *, is_same_host: bool) -> tuple[UcxWorker, Any]:
        """A worker and its endpoint to a client.

        Within a machine the client reads the batch from this process's memory: 1/4 of TCP's CPU.
        UCX does that only where it need not watch the other end, which TCP does here anyway.
        """
        if is_same_host and load_ucxx().get_current_options()["TLS"] == "all":
            worker = self._worker("sm,self")
            with suppress(OSError):  # containers of one machine may share its address alone
                return worker, worker.endpoint(address, handles_errors=False)
        worker = self._worker(None)
        return worker, worker.endpoint(address, handles_errors=True)

    def close(self) -> None:
        """Take no more connections, and send nothing more on those there are."""
        self._tcp.close()
        with self._lock:
            self._is_closed = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.close()

    def _worker(self, transports: str | None) -> UcxWorker:
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("the listener is closed")
            if transports not in self._workers:
                self._workers[transports] = UcxWorker(transports)
            return self._workers[transports]


def connect(address: str, *, timeout_s: float) -> UcxConnection:
    """Open a connection; each call on it is bound by `timeout_s` until `limit` changes that."""
    load_ucxx()
    connection = UcxConnection(tcp.connect(address, timeout_s=timeout_s))
    connection.limit(timeout_s)
    return connection
