"""`ais://BUCKET/OBJECT`: AIStore, by its S3 interface, which has ETags.

A gateway redirects (301, 307) to the target that has the object; the token is not sent to targets,
which do not require it. obstore follows redirects of reads. `WebClient` sends the requests that
obstore can't: writes, whose body must go to the target only, and names with characters that the
cluster leaves unescaped in `Location`. Source: AIStore's HTTP API and its S3 compatibility, by
recorded exchanges with a cluster.
"""

from __future__ import annotations

import http
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from shardwise.base.shown import shown
from shardwise.extensions.remote.requests.blocking_pool import BlockingPool, in_thread
from shardwise.extensions.remote.stores.getbatch import Connections, get_batch
from shardwise.extensions.remote.stores.obstore_client import (
    ObstoreClient,
    client_options,
    redirects_are_followed,
)
from shardwise.extensions.remote.stores.web import Web, WebClient, put_file
from shardwise.storage.client import AttemptError, ObjectRange
from shardwise.storage.options import StorageOptions

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
    """A bucket of an AIStore cluster.

    Args:
        bucket: its name.
        options: for time limits.
        endpoint: the gateway's URL, without a slash at the end.
        client: settings of obstore's HTTP client.
        web: settings of `WebClient`, without the token.
        find_token: gives the user's token, or looks it up.
        by_hand: whether reads must use `WebClient`: the user's headers must stay with the gateway.
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
