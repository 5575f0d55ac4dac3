"""Small web servers on the loopback, each in a thread; a function says what they answer."""

from __future__ import annotations

import hashlib
import http.server
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Handler = http.server.BaseHTTPRequestHandler


class WebServer(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave, or don't trust it, and nodes that leave are what is tested."""
        if not isinstance(sys.exception(), (OSError, ValueError)):  # of a file that was closed
            super().handle_error(request, client_address)


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(
    answer: Callable[[Any], object], *, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """A server whose requests `answer(handler)` answers; yields its URL and what was asked."""
    asked = []

    class Answering(Handler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            answer(self)

        do_HEAD = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = WebServer(("127.0.0.1", 0), Answering)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with running(server):
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", asked


def reply(handler: Handler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def send_range(handler: Handler, content: bytes) -> None:
    first, last = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
    start = int(first)
    stop = min(int(last) + 1 if last else len(content), len(content))
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    if start >= len(content):
        reply(handler, 416, Content_Range=f"bytes */{len(content)}")
    elif "Range" in handler.headers:
        place = f"bytes {start}-{stop - 1}/{len(content)}"
        reply(handler, 206, content[start:stop], ETag=etag, Content_Range=place)
    else:
        reply(handler, 200, content, ETag=etag)
