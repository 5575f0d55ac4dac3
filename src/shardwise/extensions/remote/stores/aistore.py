"""`ais://BUCKET/OBJECT`: AIStore, by its S3 interface, which has ETags.

A gateway redirects (301, 307) to the target that has the object; the token is not sent to targets,
which do not require it. obstore follows redirects of reads. `WebClient` sends the requests that
obstore can't: writes, whose body must go to the target only, and names with characters that the
cluster leaves unescaped in `Location`.

GetBatch reads many ranges of many objects by one request, as one archive, which a target assembles
in the order of the request. A missing object ends the archive early with status 200, and a range
past an object's end is never answered: so entries are counted and their sizes compared, only ranges
within known sizes are requested, and missing ones are read by a request each. The archive names no
versions. Source: AIStore's HTTP API (`/v1/ml/moss`) and its S3 compatibility, by recorded exchanges
with a cluster; the paper of GetBatch is arXiv:2602.22434.
"""

from __future__ import annotations

import http
import http.client
import json
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, urlsplit

from shardwise.base.shown import shown
from shardwise.extensions.remote.requests.blocking_pool import BlockingPool, in_thread
from shardwise.extensions.remote.requests.failures import kind_of_status
from shardwise.extensions.remote.stores.obstore_client import (
    ObstoreClient,
    client_options,
    redirects_are_followed,
)
from shardwise.extensions.remote.stores.web import Web, WebClient, put_file
from shardwise.storage.client import AttemptError, ObjectRange
from shardwise.storage.options import StorageOptions

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


P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("shardwise")

# Answers of clusters that have no GetBatch, or no ranges in it.
_NO_GET_BATCH = (400, 404, 405, 501)


def _renewing(
    ask: Callable[Concatenate[AisClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AisClient, P], Coroutine[Any, Any, T]]:
    """A request that is sent once more if the token was renewed in its file meanwhile."""

    async def renewing(client: AisClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        token = client.token
        try:
            try:
                return await ask(client, *args, **kwargs)
            except AttemptError as error:
                # Another request may have renewed it since.
                if error.kind != "denied" or (client.token == token and not client.renew()):
                    raise
            return await ask(client, *args, **kwargs)
        except AttemptError as error:
            if error.status == http.HTTPStatus.BAD_REQUEST:
                # "No storage targets": a gateway's answer for some seconds after its start.
                raise AttemptError(error.cause, "passing", status=error.status) from None
            raise

    return renewing


class AisClient(ObstoreClient):
    """A bucket of an AIStore cluster, by the URL of its gateway.

    Reads use `WebClient` if they are `by_hand`: the user's headers must stay with the gateway.
    """

    # A new target may get requests for objects that are still being moved to it.
    moves_objects = True

    def __init__(
        self,
        bucket: str,
        options: StorageOptions,
        *,
        endpoint: str,
        client: Mapping[str, Any],
        web: Web,
        find_token: Callable[[], str],
        by_hand: bool,
    ) -> None:
        self._bucket = bucket
        self._endpoint = endpoint
        self._client = dict(client)
        self._options = options
        self._bare_web = web
        self._find_token = find_token
        self._by_hand = by_hand
        self.token = find_token()
        self.has_many = not by_hand and web.proxy is None
        self._calls = BlockingPool(
            "ais://",
            lambda: Connections(timeout_s=options.attempt_timeout_s, context=web.context),
            Connections.close,
        )
        super().__init__(self._open(), options)

    def _open(self) -> Any:
        import obstore.store

        client = client_options(self._options, self._client)
        client["default_headers"] = {**client.get("default_headers", {}), **self._authorization}
        return obstore.store.S3Store(
            self._bucket,
            endpoint=f"{self._endpoint}/s3",
            region="us-east-1",
            skip_signature=True,
            client_options=client,  # type: ignore[arg-type]
            retry_config={"max_retries": 0},
        )

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def _web_client(self) -> WebClient:
        """A client for the requests that obstore can't send."""
        web = replace(self._bare_web, headers={**self._bare_web.headers, **self._authorization})
        return WebClient(f"{self._endpoint}/s3/{quote(self._bucket)}", web)

    def _substitute(self, key: str) -> tuple[WebClient, str] | None:
        if self._by_hand or not redirects_are_followed(key):
            return self._web_client, quote(key)
        return None

    # The cluster ignores If-Match: the caller compares the ETags.
    get = _renewing(ObstoreClient.get)
    head = _renewing(ObstoreClient.head)
    remove = _renewing(ObstoreClient.remove)
    names = _renewing(ObstoreClient.names)

    async def get_many(self, ranges: Sequence[ObjectRange]) -> list[memoryview | None]:
        headers = {**self._bare_web.headers, **self._authorization}
        endpoint, bucket, seconds = self._endpoint, self._bucket, self._attempt_s
        try:
            return await self._calls.call(
                lambda connections: get_batch(connections, endpoint, bucket, ranges, headers),
                timeout_s=seconds,
            )
        except TimeoutError:
            raise AttemptError("GetBatch: no answer in time", "passing") from None
        except AttemptError as error:
            if error.status in _NO_GET_BATCH and self.has_many:
                self.has_many = False
                _log.warning(
                    "the AIStore cluster at %r has no GetBatch (%s): each range is a request",
                    shown(self._endpoint),
                    error.cause,
                )
            raise

    @_renewing
    async def put(self, key: str, source: bytes | Path) -> None:
        await in_thread(partial(self._put_object, key, source))

    def _put_object(self, key: str, source: bytes | Path) -> None:
        client = self._web_client
        target = client.web.redirect_of(client.url(quote(key)), method="PUT")
        if not target:
            raise AttemptError("the gateway names no target for a write", "passing")
        put_file(replace(self._bare_web, headers={}), target, source)

    def renew(self) -> bool:
        """Look the token up again; whether it is another one."""
        token = self._find_token()
        if not token or token == self.token:
            return False
        self.token = token
        self._store = self._open()
        return True
