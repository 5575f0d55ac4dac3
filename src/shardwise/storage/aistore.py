"""`ais://BUCKET/OBJECT`: AIStore by its own HTTP interface.

A gateway answers a read with a redirect (307) to the server that has the object; it is followed,
and the token is not shown to that server. Source: AIStore's HTTP API, `/v1/objects` and
`/v1/buckets`. Imports this package.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from shardwise.storage.blocking import in_thread
from shardwise.storage.objects import ObstoreClient
from shardwise.storage.options import StorageOptions
from shardwise.storage.web import Web, WebClient, json_page

__all__ = ["AisClient", "AisWebClient", "ais_key"]

_OBJECTS = "v1/objects/"


def ais_key(url: str) -> str:
    """The path under which a gateway gives an object.

    >>> ais_key("ais://bucket/train/000.tar")
    'v1/objects/bucket/train/000.tar'
    """
    return _OBJECTS + url.removeprefix("ais://")


class AisListing:
    """An AIStore gateway's bucket interface."""

    _endpoint: str
    _web: Web

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """See `Client.names`."""
        bucket, _, start = prefix.removeprefix(_OBJECTS).partition("/")
        wanted: dict[str, Any] = {"prefix": start, "props": "name", "pagesize": 0}
        names: list[str] = []
        while True:
            page = await in_thread(partial(self._page, bucket, wanted))
            names += [entry["n"] for entry in page.get("entries") or ()]
            token = page.get("continuation_token")
            if not token:
                break
            wanted |= {"continuation_token": token, "uuid": page.get("uuid", "")}
        if delimiter:
            names = [_first_part(name, start) for name in names]
        root = f"{_OBJECTS}{bucket}/"
        return sorted({root + name for name in names})

    def _page(self, bucket: str, wanted: dict[str, Any]) -> Any:
        page, _ = json_page(
            f"{self._endpoint}/v1/buckets/{quote(bucket)}?provider=ais",
            web=self._web,
            body={"action": "list", "value": wanted},
        )
        return page


class AisClient(AisListing, ObstoreClient):
    """An AIStore gateway: objects by obstore."""

    def __init__(self, store: Any, options: StorageOptions, *, endpoint: str, web: Web) -> None:
        super().__init__(store, options)
        self._endpoint = endpoint
        self._web = web


class AisWebClient(AisListing, WebClient):
    """An AIStore gateway, where it matters where redirects lead."""

    def __init__(self, endpoint: str, web: Web) -> None:
        super().__init__(endpoint, web)
        self._endpoint = endpoint


def _first_part(name: str, prefix: str) -> str:
    """A name up to the first slash after the prefix's directory."""
    depth = len(prefix.rpartition("/")[0])
    slash = name.find("/", depth + 1 if depth else 0)
    return name if slash < 0 else name[: slash + 1]
