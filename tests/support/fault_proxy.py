"""A TCP proxy for HTTP that makes faults, seeded: delay, cut, reset, stall, 5xx, a thin line.

It stands before a real server as a process of its own, so that it takes no time from the loader
under test. It reads requests and replies only as far as it must to tell one from the next, and
passes everything on as it came, `Host` included: signatures stay valid.

    with FaultProxy(server.url, seed=1, latency_s=0.02, cut_share=0.05) as proxy:
        read(proxy.url)
        assert proxy.counts()["cut"] > 0

Request n (counted over all connections, in the order of arrival) draws its fault from (seed, n).
Only GET requests meet faults, unless `methods` says otherwise; all are delayed.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ROOT = Path(__file__).resolve().parents[2]
_CHUNK = 256 << 10


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how often. Shares are of the requests, 0 to 1, and exclude each other.

    Attributes:
        latency_s: how long every reply is held back.
        bandwidth: bytes a second of all replies together; 0 for no limit.
        reply_bandwidth: bytes a second of each reply, as stores limit it; 0 for no limit.
        error_share: answered with `error_status` instead of asking the server.
        cut_share: the connection ends in the middle of the body, in an orderly way (FIN).
        reset_share: it is reset in the middle of the body (RST).
        stall_share: the reply stops in the middle of the body, for ever; `stall_head` stops it
            before the first byte.
        cut_after: cut and stalled bodies end after so many bytes; None draws it.
        hide_etag: take ETag and Last-Modified out of every reply.
        only: only requests whose path holds this text meet faults.
    """

    latency_s: float = 0.0
    bandwidth: float = 0.0
    reply_bandwidth: float = 0.0
    error_share: float = 0.0
    error_status: int = 503
    cut_share: float = 0.0
    reset_share: float = 0.0
    stall_share: float = 0.0
    stall_head: bool = False
    cut_after: int | None = None
    hide_etag: bool = False
    only: str = ""
    methods: tuple[str, ...] = ("GET",)


class FaultProxy:
    """A proxy before the URL of a server; a context manager. `faults` are fields of `Faults`."""

    def __init__(self, target: str, *, seed: int = 0, **faults: Any) -> None:
        self.target = target
        self.seed = seed
        self.faults = Faults(**faults)
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FaultProxy:
        from tests.support.server_process import free_port

        self._start(free_port())
        return self

    def _start(self, port: int) -> None:
        from tests.support.server_process import end_with_parent

        self._process = process = subprocess.Popen(
            # -S -E: nothing but the standard library is needed, and half the time.
            [sys.executable, "-S", "-E", __file__, self.target, str(self.seed), str(port)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
        )
        assert process.stdout is not None
        taken = process.stdout.readline()
        assert taken, "the proxy did not start: its error is above"
        self.url = f"http://127.0.0.1:{int(taken)}"
        self.counts()

    def come_back(self) -> None:
        """Serve under the same address again, with counts of 0."""
        self._start(int(self.url.rpartition(":")[2]))

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End, as a server that is killed: connections break, new ones are refused."""
        from tests.support.server_process import stop

        process, self._process = self._process, None
        if process is None:
            return
        stop(process)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()

    def change(self, **faults: Any) -> None:
        """Change some faults from the next request on."""
        self.faults = replace(self.faults, **faults)
        self.counts()

    def counts(self) -> dict[str, int]:
        """What happened: `requests`, `GET`, ..., `bytes` (of bodies), `cut`, `reset`, `error`,
        `stall`, `most_at_once` (bodies); what never happened is 0.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(self.faults)).encode() + b"\n")
        process.stdin.flush()
        return Counter(json.loads(process.stdout.readline()))


@dataclass
class _Line:
    """A line of so many bytes a second."""

    free_at: float = 0.0

    async def carry(self, num_bytes: int, bandwidth: float) -> None:
        if not bandwidth:
            return
        now = time.monotonic()
        self.free_at = max(self.free_at, now) + num_bytes / bandwidth
        await asyncio.sleep(self.free_at - now)


@dataclass
class _Proxy:
    """The process's side: one task a connection."""

    host: str
    port: int
    seed: int
    faults: Faults
    counts: Counter[str] = field(default_factory=Counter)
    line: _Line = field(default_factory=_Line)
    num_bodies: int = 0
    # Nothing else holds what waits for ever.
    serving: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while head := await _read_head(reader):
                method, target, _ = head.split(b"\r\n", 1)[0].split(b" ", 2)
                self.counts["requests"] += 1
                self.counts[method.decode()] += 1
                faults = self.faults
                fault, draw = self._draw(faults, method.decode(), target.decode("latin-1"))
                if fault == "error":
                    await _pass(reader, None, _length(head))
                    await asyncio.sleep(faults.latency_s)
                    writer.write(_reply(faults.error_status, b"made by the fault proxy"))
                    await writer.drain()
                    continue
                if upstream is None:
                    upstream = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
                if not await self._exchange(
                    head, method == b"HEAD", faults, fault, draw, (reader, writer), upstream
                ):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # one side went away: so does the other
        finally:
            self.serving.discard(asyncio.current_task())
            for stream in (writer, *(upstream[1:] if upstream else ())):
                stream.close()

    def _draw(self, faults: Faults, method: str, target: str) -> tuple[str, float]:
        """The fault of this request, "" for none, and where in the body it comes."""
        # Text seeds go through SHA-512: neighbouring numbers have nothing in common.
        drawn = random.Random(f"{self.seed}:{self.counts['requests']}")
        share, place = drawn.random(), drawn.random()
        if method not in faults.methods or faults.only not in target:
            return "", place
        for name in ("error", "cut", "reset", "stall"):
            share -= getattr(faults, f"{name}_share")
            if share < 0:
                self.counts[name] += 1
                return name, place
        return "", place

    async def _exchange(
        self,
        head: bytes,
        is_head: bool,
        faults: Faults,
        fault: str,
        draw: float,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Pass a request and its reply on; False if the connection is to end."""
        server[1].write(head)
        await _pass(client[0], server[1], _length(head))
        reply = await _read_head(server[0])
        if reply.split(b" ", 2)[1] == b"100":
            client[1].write(reply)
            reply = await _read_head(server[0])
        if not reply:
            return False
        await asyncio.sleep(faults.latency_s)
        if fault == "stall" and faults.stall_head:
            await client[0].read()
            return False
        if faults.hide_etag:
            reply = _without(reply, (b"etag:", b"last-modified:"))
        client[1].write(reply)
        status = reply.split(b" ", 2)[1]
        if is_head or status in (b"204", b"304"):
            await client[1].drain()
            return True
        if b"transfer-encoding: chunked" in reply.lower():
            return await self._pass_chunks(server[0], client[1])
        length = _length(reply, default=-1)
        if fault in ("cut", "reset", "stall"):
            most = max(length - 1, 0)
            asked = int(draw * most) if faults.cut_after is None else faults.cut_after
            await self._body(server[0], client[1], min(asked, most), faults)
            await self._break(fault, *client)
            return False
        await self._body(server[0], client[1], length, faults)
        return length >= 0

    async def _body(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        length: int,
        faults: Faults,
    ) -> None:
        """Pass `length` bytes on, or all up to the end if it is negative."""
        own = _Line()
        self.num_bodies += 1
        self.counts["most_at_once"] = max(self.counts["most_at_once"], self.num_bodies)
        try:
            while length:
                chunk = await reader.read(_CHUNK if length < 0 else min(length, _CHUNK))
                if not chunk:
                    if length > 0:
                        raise ConnectionError("the server ended the reply early")
                    return
                await self.line.carry(len(chunk), faults.bandwidth)
                await own.carry(len(chunk), faults.reply_bandwidth)
                self.counts["bytes"] += len(chunk)
                writer.write(chunk)
                await writer.drain()
                length -= len(chunk) if length > 0 else 0
        finally:
            self.num_bodies -= 1

    async def _pass_chunks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Pass a chunked body on, trailers included; lists come so, objects don't: no faults."""
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            writer.write(line + await reader.readexactly(size + 2 if size else 0))
            if not size:
                while line != b"\r\n":
                    line = await reader.readuntil(b"\r\n")
                    writer.write(line)
                await writer.drain()
                return True

    async def _break(
        self, fault: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await writer.drain()
        if fault == "stall":
            await reader.read()  # for ever: until the client gives up
        elif fault == "reset":
            # A linger of no time makes the kernel send a reset.
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()

    def answer(self) -> None:
        """Take the faults that a line of stdin says, and say what happened."""
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        self.faults = Faults(**json.loads(line))
        print(json.dumps(self.counts), flush=True)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """A request or a reply up to its empty line; nothing at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, length: int
) -> None:
    """Pass a request's body on, or throw it away."""
    while length:
        chunk = await reader.read(min(length, _CHUNK))
        if not chunk:
            raise ConnectionError("the client ended the request early")
        length -= len(chunk)
        if writer is not None:
            writer.write(chunk)
            await writer.drain()


def _length(head: bytes, default: int = 0) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":", 1)[1])
    return default


def _without(head: bytes, names: tuple[bytes, ...]) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(names))


def _reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Made\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def _main() -> None:
    target = urlsplit(sys.argv[1])
    assert target.hostname is not None
    proxy = _Proxy(target.hostname, target.port or 80, int(sys.argv[2]), Faults())
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", int(sys.argv[3]), limit=1 << 20)
    asyncio.get_running_loop().add_reader(sys.stdin, proxy.answer)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
