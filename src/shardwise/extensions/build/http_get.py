"""One GET of an untrusted URL: bounded in time, size, redirects and schemes.

The requests of `shardwise.storage` are for stores that the user chose: they wait for one that is
away, follow the environment's proxy, and bound the silence between two bytes. A list of URLs from
the web has servers of any kind, so here the time and the size of a whole reply are bounded.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# Most pictures are a few pieces; a body that is too large is left after one piece too many.
_PIECE_BYTES = 64 << 10
# Unescaped in paths and queries; a % starts an escape that the URL has.
_SAFE = "/%~!$&'()*+,;=:@?[]"
# Servers refuse clients without a name, and some refuse all but browsers.
_AGENT = "Mozilla/5.0 (compatible; shardwise)"


class GetError(Exception):
    """A GET that failed. `word` is the reason, `passes` whether another try may succeed."""

    def __init__(self, word: str, *, passes: bool = False) -> None:
        self.word = word
        self.passes = passes
        super().__init__(word)


@dataclass(frozen=True, slots=True)
class _Target:
    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The header Host, which has the port only if it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def get(url: str, *, timeout_s: float, max_bytes: int) -> bytes:
    """The body of a reply with status 200."""
    deadline = time.monotonic() + timeout_s
    try:
        target = _target_of(url)
        for _ in range(_MAX_REDIRECTS + 1):
            body, location = _answer(target, deadline, max_bytes)
            if not location:
                return body
            # Headers come as Latin-1, and servers write UTF-8.
            url = urljoin(url, location.encode("latin-1").decode("utf-8", "replace"))
            after = _target_of(url)
            if target.is_tls and not after.is_tls:
                raise GetError("redirect from https to http")
            target = after
    except ValueError:  # of a URL, or of a host that no name can have
        raise GetError("bad url") from None
    raise GetError("too many redirects")


def _target_of(url: str) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise GetError("not http")
    host, is_tls = (parts.hostname or ""), parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    path = quote(parts.path or "/", safe=_SAFE)
    path += f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    host = host.encode("idna").decode() if not host.isascii() else host
    # A user in a URL is a password that the list's author should not have written there.
    if not host or "@" in parts.netloc or not host.isprintable() or " " in host:
        raise GetError("bad url")
    return _Target(is_tls, host, port, path)


def _answer(target: _Target, deadline: float, max_bytes: int) -> tuple[bytes, str]:
    """The body, or where a redirect goes."""
    request = (
        f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nUser-Agent: {_AGENT}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    with closing(_open_connection(target, deadline)) as connection:
        try:
            connection.settimeout(_get_time_left(deadline))
            connection.sendall(request.encode("ascii"))
            # HTTPResponse takes the bytes that it parses from `makefile` alone.
            source: Any = _Source(connection, deadline)
            with closing(HTTPResponse(source, method="GET")) as reply:
                reply.begin()
                location = reply.headers.get("Location", "")
                if reply.status in _REDIRECTS and location:
                    return b"", location
                if reply.status != 200:
                    # Too early, too often, and the server's own troubles.
                    passes = reply.status in (408, 425, 429) or reply.status >= 500
                    raise GetError(f"http {reply.status}", passes=passes)
                return _body(reply, reply.headers, max_bytes), ""
        except TimeoutError:
            raise GetError("timeout", passes=True) from None
        except (IncompleteRead, OSError):
            raise GetError("cut short", passes=True) from None
        except (HTTPException, ValueError):
            raise GetError("not a reply of http") from None


def _body(reply: HTTPResponse, headers: HTTPMessage, max_bytes: int) -> bytes:
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise GetError("compressed")
    if (reply.length or 0) > max_bytes:
        raise GetError("too large")
    data = bytearray()
    while piece := reply.read(_PIECE_BYTES):
        data += piece
        if len(data) > max_bytes:
            raise GetError("too large")
    # `read` with a size does not report missing bytes.
    if reply.length:
        raise GetError("cut short", passes=True)
    return bytes(data)


def _open_connection(target: _Target, deadline: float) -> socket.socket:
    """A connection to the first address that answers; over TLS a verified one."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise GetError("no host", passes=error.errno == socket.EAI_AGAIN) from None
    word = "no host"
    for family, kind, protocol, _, address in found:
        try:
            with ExitStack() as closing_it:
                connection = closing_it.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(_get_time_left(deadline))
                connection.connect(address)
                if target.is_tls:
                    connection.settimeout(_get_time_left(deadline))
                    connection = _tls_context().wrap_socket(connection, server_hostname=target.host)
                closing_it.pop_all()
                return connection
        except TimeoutError:
            raise GetError("timeout", passes=True) from None
        except ssl.SSLCertVerificationError:
            raise GetError("certificate") from None
        except ssl.SSLError:
            raise GetError("tls") from None
        except OSError as error:
            word = "refused" if isinstance(error, ConnectionRefusedError) else "no connection"
    raise GetError(word, passes=True)


def _get_time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@cache
def _tls_context() -> ssl.SSLContext:
    """The system's authorities: read once, which takes 20 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    return context


class _Source(io.RawIOBase):
    """Bytes that a socket receives, for `HTTPResponse`; each wait is cut at one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - it is always "rb"
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_get_time_left(self._deadline))
        return self._connection.recv_into(buffer)
