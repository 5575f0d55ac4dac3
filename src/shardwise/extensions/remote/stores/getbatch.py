"""GetBatch of AIStore: many ranges of many objects by one request, as one archive.

The gateway redirects the request, with its body, to a target that assembles the archive in the
order of the request. A missing object ends the archive early with status 200, and a range past an
object's end is never answered: so entries are counted and their sizes compared, only ranges within
known sizes are requested, and missing ones are read by a request each. The archive names no
versions. Source: AIStore's HTTP API (`/v1/ml/moss`), by recorded exchanges; the paper is
arXiv:2602.22434.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

from shardwise.extensions.remote.requests.failures import kind_of_status
from shardwise.storage.client import AttemptError, ObjectRange

_BLOCK = 512
_NAME_BYTES = 100
_REDIRECTS = (301, 302, 307, 308)
_JSON = {"Content-Type": "application/json"}


class Connections:
    """Open connections to the nodes of a cluster, for one call at a time."""

    def __init__(self, *, timeout_s: float, context: ssl.SSLContext | None) -> None:
        self._timeout_s = timeout_s
        self._context = context
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def ask(self, url: str, body: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a GET with a body; once more if the server had closed the connection."""
        parts = urlsplit(url)
        node = (parts.scheme, parts.netloc)
        path = f"{parts.path}?{parts.query}"
        for is_again in (node not in self._open, True):
            connection = self._open.pop(node, None) or self._connect(*node)
            try:
                connection.request("GET", path, body=body, headers=dict(headers))
                reply = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError):
                connection.close()
                if is_again:
                    raise
            else:
                self._open[node] = connection
                return reply
        raise AssertionError("unreachable: the second try returns or raises")

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        if scheme == "https":
            return http.client.HTTPSConnection(
                netloc, timeout=self._timeout_s, context=self._context
            )
        return http.client.HTTPConnection(netloc, timeout=self._timeout_s)


def get_batch(
    connections: Connections,
    endpoint: str,
    bucket: str,
    ranges: Sequence[ObjectRange],
    headers: Mapping[str, str],
) -> list[memoryview | None]:
    """Read ranges by one request to a gateway, within the objects' sizes: else it never answers.

    The headers, with the token, are for the gateway only.

    Returns:
        The bytes of each range, in order; None for each that the reply lacks.

    Raises:
        AttemptError: no archive; its `status` shows whether the cluster has GetBatch.
    """
    objects = [
        {"objname": each.key, "start": each.start, "length": each.stop - each.start}
        for each in ranges
    ]
    body = json.dumps({"mime": ".tar", "in": objects, "strm": True, "onob": True}).encode()
    url = f"{endpoint}/v1/ml/moss/{quote(bucket)}?provider=ais"
    try:
        reply = connections.ask(url, body, {**headers, **_JSON})
        if reply.status in _REDIRECTS:
            target = reply.headers.get("Location", "")
            reply.read()
            if urlsplit(target).scheme not in ("http", "https"):
                raise AttemptError("a redirect to nowhere", "passing")
            reply = connections.ask(target, body, _JSON)
        if reply.status != http.client.OK:
            reply.read()
            kind = kind_of_status(reply.status)
            raise AttemptError(f"GetBatch: HTTP {reply.status}", kind, status=reply.status)
        try:
            archive = reply.read()
        except http.client.IncompleteRead as error:
            archive = error.partial
    except (OSError, http.client.HTTPException) as error:
        raise AttemptError(f"GetBatch: {type(error).__name__}", "passing") from None
    return _entries(memoryview(archive), ranges)


def _entries(archive: memoryview, ranges: Sequence[ObjectRange]) -> list[memoryview | None]:
    """The members' bytes, up to the first that is not the requested one."""
    payloads: list[memoryview | None] = []
    at = 0
    for each in ranges:
        while True:
            header = bytes(archive[at : at + _BLOCK])
            kind, size = header[156:157], _size(header)
            at += _BLOCK
            if kind not in (b"x", b"g", b"L") or size is None:
                break
            # The header of a long name, which is not compared.
            at += -(-size // _BLOCK) * _BLOCK
        data = archive[at : at + (size or 0)]
        name = header[:_NAME_BYTES].rstrip(b"\0")
        key = each.key.encode()
        is_named = name == key or len(key) > _NAME_BYTES
        if size != each.stop - each.start or len(data) != size or not is_named:
            break
        payloads.append(data)
        at += -(-size // _BLOCK) * _BLOCK
    return payloads + [None] * (len(ranges) - len(payloads))


def _size(header: bytes) -> int | None:
    """The size in a tar header; None if it is not a header."""
    if len(header) < _BLOCK or header[257:262] != b"ustar":
        return None
    try:
        return int(header[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        return None
