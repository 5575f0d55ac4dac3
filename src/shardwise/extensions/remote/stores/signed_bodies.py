"""Long ranges of a store without TLS: signed GETs, received into reused buffers by threads.

obstore copies each byte twice, into new memory. Here the kernel fills a buffer by one call without
the GIL, which takes a third less CPU time. TLS has no such call. A signed URL is a secret: it is in
no error.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from shardwise.extensions.remote.requests.blocking_pool import BlockingPool
from shardwise.extensions.remote.requests.event_loop import cancel
from shardwise.extensions.remote.requests.failures import no_answer, short_reply
from shardwise.extensions.remote.stores.web import check_part, failed_status
from shardwise.storage.client import AttemptError, Reply
from shardwise.storage.options import StorageOptions

# Longer ones would not fit into the CPU's caches.
_BUFFER_BYTES = 2 << 20
_CONNECT_S = 5.0
# Seconds without the end of a request after which the buffers are freed.
_IDLE_S = 10.0
# A refusal may be of keys that expired or of one object: URLs are signed again after a pause, each
# time twice as long. A store that accepts none refuses a request an hour.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 60.0, 3600.0
_log = logging.getLogger("shardwise")


class SignedBodies:
    """Ranges of one store; `sign` makes the URL of a key, from the keys that are valid now.

    `endpoint` is the store's as it may be shown. Memory: as many buffers as were in use at a time,
    for readers and for requests in flight.
    """

    def __init__(
        self, endpoint: str, sign: Callable[[str], Awaitable[str]], options: StorageOptions
    ) -> None:
        self._sign, self._endpoint = sign, endpoint
        self._pause_s, self._resume_at = 0.0, 0.0
        self._attempt_s, self._request_s = options.attempt_timeout_s, options.request_timeout_s
        self._pool: BlockingPool[http.client.HTTPConnection] = BlockingPool(
            endpoint, self._connection, http.client.HTTPConnection.close, options.max_requests
        )
        self._netloc = ""
        self._buffers = _Buffers()
        self._release: asyncio.TimerHandle | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the store refused signed URLs lately."""
        return time.monotonic() < self._resume_at

    async def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """See `Client.stream`."""
        try:
            body, arrived = await self._request(key, (start, stop, etag))
            receiving = asyncio.ensure_future(
                self._pool.call(
                    lambda connection: body.receive(connection, piece_bytes),
                    timeout_s=self._request_s,
                )
            )
            receiving.add_done_callback(lambda _: arrived.put_nowait(None))
            try:
                while (reply := await arrived.get()) is not None:
                    self._pause_s = 0.0
                    yield reply
                receiving.result()
            except TimeoutError:
                raise no_answer(self._request_s) from None
            finally:
                body.give_up()
                await cancel([receiving])
                if self._release is not None:
                    self._release.cancel()
                loop = asyncio.get_running_loop()
                self._release = loop.call_later(_IDLE_S, self._buffers.clear)
        except AttemptError as error:
            if error.kind in ("denied", "refused") and not self.is_refused:
                self._pause(error.cause)
            raise

    async def _request(
        self, key: str, part: tuple[int, int, str]
    ) -> tuple[_Body, asyncio.Queue[Reply | None]]:
        """Sign a request for a part of an object; its body to receive, and where that arrives."""
        parts = urlsplit(await self._sign(key))
        if parts.scheme != "http":
            # The endpoint of a variable that obstore prefers to the settings.
            raise AttemptError("the environment names another endpoint, with TLS", "refused")
        self._netloc = parts.netloc.rpartition("@")[2]
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Reply | None] = asyncio.Queue()
        body = _Body(
            f"{parts.path}?{parts.query}",
            part,
            self._attempt_s,
            self._buffers,
            lambda reply: loop.call_soon_threadsafe(arrived.put_nowait, reply),
        )
        return body, arrived

    def _pause(self, cause: str) -> None:
        """Let obstore read for a while; warn at the first refusal in a row."""
        if not self._pause_s:
            _log.warning(
                "%s refuses signed URLs (%s): obstore reads long ranges for a while, which takes "
                "more CPU time",
                self._endpoint,
                cause,
            )
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._resume_at = time.monotonic() + self._pause_s

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._netloc, timeout=min(_CONNECT_S, self._attempt_s))


class _Body:
    """One range, received by a thread, which another thread may end."""

    def __init__(
        self,
        target: str,
        part: tuple[int, int, str],
        attempt_s: float,
        buffers: _Buffers,
        put: Callable[[Reply], object],
    ) -> None:
        self._target = target
        self._start, self._stop, self._etag = part
        self._attempt_s = attempt_s
        self._buffers = buffers
        self._put = put
        self._socket: socket.socket | None = None
        self._is_over = False

    def give_up(self) -> None:
        """Wake the thread that still receives it, and let it end."""
        if not self._is_over:
            self._is_over = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self, connection: http.client.HTTPConnection, piece_bytes: int) -> None:
        """Request the range, and pass it on in pieces. Raises AttemptError."""
        began = time.monotonic()
        try:
            # Closed also by an error: where the server ends the connection, it has the only socket.
            with self._ask(connection) as reply:
                if reply.status >= http.client.MULTIPLE_CHOICES:
                    raise failed_status(reply)
                num_bytes, stat = check_part(reply, self._start, self._stop)
                if reply.length != num_bytes:
                    raise short_reply(reply.length or 0, num_bytes)
                head_s, at, data = time.monotonic() - began, 0, memoryview(b"")
                # All that was received with the headers; what follows is still in the socket.
                first = reply.read1(io.DEFAULT_BUFFER_SIZE)
                piece_bytes = max(piece_bytes, io.DEFAULT_BUFFER_SIZE)
                assert self._socket is not None
                self._socket.settimeout(None)
                while at < num_bytes:
                    data = data or self._buffers.take(num_bytes - at)
                    piece, data = data[:piece_bytes], data[piece_bytes:]
                    piece[: len(first)] = first
                    filled, first = len(first), b""
                    while filled < len(piece):
                        count = self._socket.recv_into(piece[filled:], 0, socket.MSG_WAITALL)
                        filled += count
                        if not count or self._is_over:
                            raise short_reply(at + filled, num_bytes)
                    at += filled
                    self._put(Reply(piece, stat, head_s))
                # Nothing of it is left to read: the connection is free for the next request.
                reply.length = 0
                reply.read()
                self._is_over = True
        except (TimeoutError, BlockingIOError):
            raise no_answer(self._attempt_s) from None
        except (OSError, http.client.HTTPException) as error:
            raise AttemptError(f"the reply failed ({type(error).__name__})", "passing") from None

    def _ask(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        """Send the request; once more if the server had closed the connection."""
        headers = {"Range": f"bytes={self._start}-{self._stop - 1}", "User-Agent": "shardwise"}
        if self._etag and not self._etag.startswith("W/"):
            headers["If-Match"] = self._etag
        for is_again in (connection.sock is None, True):
            try:
                if connection.sock is None:
                    connection.connect()
                self._socket = connection.sock
                assert self._socket is not None
                self._socket.settimeout(self._attempt_s)
                # Python's limit ends no call of the kernel that fills a buffer.
                limit = struct.pack("@ll", *divmod(int(self._attempt_s * 1e6), 10**6))
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                connection.request("GET", self._target, headers=headers)
                return connection.getresponse()
            except ConnectionError:
                connection.close()
                if is_again or self._is_over:
                    raise
        raise AssertionError("unreachable: the second try returns or raises")


class _Buffers:
    """Buffers that are used again once no view of them is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The one that was given away first is first.
        self._all: deque[bytearray] = deque()

    def take(self, num_bytes: int) -> memoryview:
        """A buffer of `num_bytes`, or of the usual length if that is shorter."""
        if num_bytes < _BUFFER_BYTES:
            return memoryview(bytearray(num_bytes))
        with self._lock:
            for _ in range(len(self._all)):
                buffer = self._all.popleft()
                self._all.append(buffer)
                # A bytearray with views can't change its length.
                with suppress(BufferError):
                    buffer.append(buffer.pop())
                    return memoryview(buffer)
            self._all.append(buffer := bytearray(_BUFFER_BYTES))
            return memoryview(buffer)

    def clear(self) -> None:
        """Free those without views; the others are freed with their views."""
        with self._lock:
            self._all.clear()
