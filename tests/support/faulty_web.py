"""A web server on the loopback with the faults that lists of URLs meet."""

from __future__ import annotations

import http.server
import threading
from collections import Counter

# Its body "large" is one byte longer.
LIMIT = 100_000


def body_of(name: str) -> bytes:
    return f"{name}|".encode() * 3000


class FaultyServer(http.server.ThreadingHTTPServer):
    """A web server; the last part of a path says what it does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.is_repaired = False
        self.ended = threading.Event()
        self.at_once = threading.Barrier(4)
        self.root = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients that leave are what is tested."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: FaultyServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, name = self.server, self.path.partition("?")[0].rpartition("/")[2]
        with server.lock:
            server.asked[self.path] += 1
            times = server.asked[self.path]
        kind = name.partition("-")[0]
        if server.is_repaired or kind == "good":
            self.answer(200, body_of(name))
        elif kind == "flaky":
            self.answer(500 if times == 1 else 200, body_of(name))
        elif kind == "together":
            server.at_once.wait(60)
            self.answer(200, body_of(name))
        elif kind.isdigit():
            self.answer(int(kind), b"an error page")
        elif kind == "large":
            self.answer(200, b"x" * (LIMIT + 1))
        elif kind == "endless":
            self.answer(200, b"x" * 1000, length=None, is_endless=True)
        elif kind == "cut":
            self.answer(200, b"x" * 50, length=100)
        elif kind == "zipped":
            self.answer(200, b"x", encoding="gzip")
        elif kind == "drip":
            # Each byte comes soon; the whole never.
            self.answer(200, b"x", length=90_000, is_endless=True, pause_s=0.05)
        elif kind == "silent":
            server.ended.wait()
        elif kind == "garbage":
            self.wfile.write(b"SSH-2.0-nothing\r\n\r\n")
        elif kind == "loop":
            self.redirect(f"loop-{times}")
        elif kind == "hops":
            left = int(name.partition("-")[2])
            self.redirect(f"hops-{left - 1}" if left > 1 else "good-end")
        else:
            targets = {"file": "file:///etc/passwd", "ftp": "ftp://127.0.0.1/x", "bad": "http://["}
            self.redirect(targets[kind])

    def redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("Location", target)
        self.end_headers()

    def answer(self, status, body, *, length=-1, encoding="", is_endless=False, pause_s=0.0):
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(len(body) if length < 0 else length))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        self.wfile.write(body)
        while is_endless and not self.server.ended.wait(pause_s):
            self.wfile.write(body)
