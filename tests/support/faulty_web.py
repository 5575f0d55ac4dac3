"""A web server on the loopback with the faults that lists of URLs meet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.web import Handler, reply, serving

# Its body "large" is one byte longer.
LIMIT = 100_000


def body_of(name: str) -> bytes:
    return f"{name}|".encode() * 3000


@contextmanager
def faulty_web() -> Iterator[FaultyWeb]:
    web = FaultyWeb()
    with serving(web.answer) as (web.root, _):
        yield web
        web.ended.set()


class FaultyWeb:
    """A web server; the last part of a path says what it does."""

    def __init__(self) -> None:
        self.root = ""
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.is_repaired = False
        self.ended = threading.Event()
        self.at_once = threading.Barrier(4)

    def answer(self, handler: Handler) -> None:
        name = handler.path.partition("?")[0].rpartition("/")[2]
        # Bodies end where their connections do.
        handler.close_connection = True
        with self.lock:
            self.asked[handler.path] += 1
            times = self.asked[handler.path]
        kind = name.partition("-")[0]
        if self.is_repaired or kind == "good":
            self.send(handler, 200, body_of(name))
        elif kind == "flaky":
            self.send(handler, 500 if times == 1 else 200, body_of(name))
        elif kind == "together":
            self.at_once.wait(60)
            self.send(handler, 200, body_of(name))
        elif kind.isdigit():
            self.send(handler, int(kind), b"an error page")
        elif kind == "large":
            self.send(handler, 200, b"x" * (LIMIT + 1))
        elif kind == "endless":
            self.send(handler, 200, b"x" * 1000, length=None, is_endless=True)
        elif kind == "cut":
            self.send(handler, 200, b"x" * 50, length=100)
        elif kind == "zipped":
            self.send(handler, 200, b"x", encoding="gzip")
        elif kind == "drip":
            # Each byte comes soon; the whole never.
            self.send(handler, 200, b"x", length=90_000, is_endless=True, pause_s=0.05)
        elif kind == "silent":
            self.ended.wait()
        elif kind == "garbage":
            handler.wfile.write(b"SSH-2.0-nothing\r\n\r\n")
        elif kind == "loop":
            reply(handler, 302, Location=f"loop-{times}")
        elif kind == "hops":
            left = int(name.partition("-")[2])
            reply(handler, 302, Location=f"hops-{left - 1}" if left > 1 else "good-end")
        else:
            targets = {"file": "file:///etc/passwd", "ftp": "ftp://127.0.0.1/x", "bad": "http://["}
            reply(handler, 302, Location=targets[kind])

    def send(self, handler, status, body, *, length=-1, encoding="", is_endless=False, pause_s=0.0):
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(len(body) if length < 0 else length))
        if encoding:
            handler.send_header("Content-Encoding", encoding)
        handler.end_headers()
        handler.wfile.write(body)
        while is_endless and not self.ended.wait(pause_s):
            handler.wfile.write(body)
