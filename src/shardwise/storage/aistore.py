"""`ais://BUCKET/OBJECT`: AIStore, by its S3 interface, which tells versions apart.

A gateway answers with a redirect (301, 307) to the target that has the object; the token is not
shown to targets, which do not ask for it. obstore follows redirects of reads. By hand go what it
can't follow: writes, whose body must be sent to the target only, and names with characters that the
cluster writes bare into `Location`. Source: AIStore's HTTP API and its S3 compatibility, by
recorded exchanges with a cluster.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from shardwise.storage import ambient
from shardwise.storage.attempts import Reply
from shardwise.storage.blocking import in_thread
from shardwise.storage.failures import AttemptError, kind_of_status, said_by_s3
from shardwise.storage.objects import ObstoreClient, client_options
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

__all__ = ["AisClient"]

T = TypeVar("T")

_REDIRECTS = (301, 302, 307, 308)
# What the HTTP client refuses in a Location.
_BARE = frozenset('[]{}|\\^`<>" %#?')
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_PIECE = 8 << 20


class AisClient(ObstoreClient):
    """A bucket of an AIStore cluster.

    Args:
        bucket: its name.
        options: for time limits.
        endpoint: the gateway's URL, without a slash at the end.
        client: settings of the HTTP client.
        token: given by the user, or None to look for it where AIStore's own tools do.
    """

    # A new target is asked for objects that are still on their way to it.
    moves_objects = True

    def __init__(
        self,
        bucket: str,
        options: StorageOptions,
        *,
        endpoint: str,
        client: Mapping[str, Any],
        token: str | None,
    ) -> None:
        self._bucket = bucket
        self._endpoint = endpoint
        self._client = dict(client)
        self._options = options
        self._is_given = token is not None
        self._token = token if token is not None else ambient.ais_place()[1]
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
            retry_config={"max_retries": 0},  # type: ignore[arg-type]
        )

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        """See `Client.get`. The cluster ignores If-Match: the caller compares the ETags."""
        if _is_odd(key):
            return await self._authorized(lambda: self._get_by_hand(key, start, stop))
        return await self._authorized(lambda: ObstoreClient.get(self, key, start, stop, ""))

    async def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """See `Client.stream`."""
        if not _is_odd(key):
            async for reply in super().stream(key, start, stop, "", piece_bytes):
                yield reply
            return
        while start < stop:
            reply = await self.get(key, start, min(stop, start + _PIECE), etag)
            yield reply
            start += len(reply.data)

    async def head(self, key: str) -> FileStat:
        """See `Client.head`."""
        if _is_odd(key):
            return (await self._authorized(lambda: self._by_hand("HEAD", key))).stat
        return await self._authorized(lambda: ObstoreClient.head(self, key))

    async def put(self, key: str, source: bytes | Path) -> None:
        """Store an object whole, by one request to its target."""
        await self._authorized(lambda: self._by_hand("PUT", key, source=source))

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """See `Client.names`."""
        return await self._authorized(
            lambda: ObstoreClient.names(self, prefix, delimiter=delimiter)
        )

    async def _authorized(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and once more where the token was renewed in its file in the meantime."""
        used = self._token
        try:
            try:
                return await ask()
            except AttemptError as error:
                # Another request may have renewed it since.
                if error.kind != "denied" or (self._token == used and not self._renew()):
                    raise
            return await ask()
        except AttemptError as error:
            if error.status == http.HTTPStatus.BAD_REQUEST:
                # "No storage targets": a gateway that has just started says so for seconds.
                raise AttemptError(error.cause, "passing", status=error.status) from None
            raise

    def _renew(self) -> bool:
        found = "" if self._is_given else ambient.ais_place()[1]
        if not found or found == self._token:
            return False
        self._token = found
        self._store = self._open()
        return True

    async def _get_by_hand(self, key: str, start: int, stop: int) -> Reply:
        began = time.monotonic()
        found = await self._by_hand("GET", key, headers={"Range": f"bytes={start}-{stop - 1}"})
        if len(found.body) != min(stop, found.stat.num_bytes) - start:
            raise AttemptError(
                f"the reply has {len(found.body)} bytes where {stop - start} were asked for",
                "passing",
            )
        return Reply(memoryview(found.body), found.stat, time.monotonic() - began)

    async def _by_hand(
        self,
        method: str,
        key: str,
        *,
        headers: Mapping[str, str] | None = None,
        source: bytes | Path | None = None,
    ) -> _Found:
        url = f"{self._endpoint}/s3/{quote(self._bucket)}/{quote(key)}"
        given = {**self._client.get("default_headers", {}), **(headers or {})}
        return await in_thread(
            partial(_exchange, method, url, given, self._authorization, source, self._attempt_s)
        )


class _Found(NamedTuple):
    """A reply: of which version, and its body."""

    stat: FileStat
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow none."""


def _exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    authorization: Mapping[str, str],
    source: bytes | Path | None,
    timeout_s: float,
) -> _Found:
    """Ask the gateway, without a body, and then the target that it names."""
    opener = urllib.request.build_opener(_NoRedirects())

    def ask(url: str, headers: Mapping[str, str], data: bytes | IO[bytes] | None) -> _Found:
        request = urllib.request.Request(url, data=data, headers=dict(headers), method=method)  # noqa: S310 - the endpoint's scheme
        with opener.open(request, timeout=timeout_s) as reply:
            return _Found(_stat(reply.headers), reply.read())

    try:
        try:
            empty = None if source is None else b""
            return ask(url, {**headers, **authorization}, empty)
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location", "")
            is_web = urlsplit(location).scheme in ("http", "https")
            if error.code not in _REDIRECTS or not is_web:
                raise
            error.close()
        # Names come back bare; what is escaped already stays.
        place = quote(location, safe="%/:?&=@+,;~!$'()*")
        if not isinstance(source, Path):
            return ask(place, headers, source)
        with source.open("rb") as file:
            length = {"Content-Length": str(source.stat().st_size)}
            return ask(place, {**headers, **length}, file)
    except urllib.error.HTTPError as error:
        with error:
            said = said_by_s3(error.read(4096).decode("utf-8", "replace"))
        cause = ": ".join([f"HTTP {error.code} {error.reason}", *said])
        raise AttemptError(cause, kind_of_status(error.code), status=error.code) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise AttemptError(f"no reply ({type(reason).__name__})", "passing") from None


def _stat(headers: Mapping[str, str]) -> FileStat:
    """The version that a reply is of, by its headers."""
    part = _RANGE.fullmatch(headers.get("Content-Range") or "")
    num_bytes = int(part[3]) if part else int(headers.get("Content-Length") or 0)
    changed = email.utils.parsedate_to_datetime(headers["Last-Modified"])
    return FileStat(num_bytes, int(changed.timestamp()) * 10**9, headers.get("Etag") or "")


def _is_odd(key: str) -> bool:
    """Whether a redirect to a key is refused by the HTTP client."""
    return not _BARE.isdisjoint(key)
