"""`hf://datasets/ORG/NAME[@REVISION]/PATH`: datasets of the Hugging Face hub, by HTTP.

Files are read through the hub's "resolve" URLs, which redirect to the servers with the bytes;
listings come from its tree API. Source: the HTTP API of the hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.requests.blocking_pool import in_thread
from shardwise.extensions.remote.stores.obstore_client import ObstoreClient, redirects_are_followed
from shardwise.extensions.remote.stores.web import Web, WebClient, body_of
from shardwise.storage.client import AttemptError
from shardwise.storage.options import StorageOptions

_URL = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<path>.*)",
    re.DOTALL,
)
_KEY = re.compile(r"datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", re.DOTALL)
_MAX_JSON_BYTES = 256 << 20
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


def hub_key(url: str) -> str:
    """The path of a file on the hub.

    >>> hub_key("hf://datasets/org/name@v1/train/000.tar")
    'datasets/org/name/resolve/v1/train/000.tar'
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise StorageError(f"{url!r} is not of the form hf://datasets/ORG/NAME[@REVISION]/PATH")
    # The slashes of a revision are sent as %2F.
    revision = (parts["revision"] or "main").replace("/", "%2F")
    return f"datasets/{parts['repo']}/resolve/{revision}/{parts['path']}"


def hub_url(key: str) -> str:
    """The URL of a file of the hub: the inverse of `hub_key`."""
    repo, revision, path = _parts(key)
    return f"hf://datasets/{repo}{'' if revision == 'main' else f'@{revision}'}/{path}"


def _parts(key: str) -> tuple[str, str, str]:
    """Repository, revision and path of a key."""
    parts = _KEY.fullmatch(key)
    assert parts is not None, key
    return parts[1], parts[2], parts[3]


class HubWebClient(WebClient):
    """The hub with controlled redirects."""

    def __init__(self, endpoint: str, web: Web) -> None:
        super().__init__(endpoint, web)
        self._endpoint = endpoint

    def url(self, key: str) -> str:
        repo, revision, path = _parts(key)
        return f"{self._endpoint}/datasets/{repo}/resolve/{revision}/{quote(path)}"

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        if not _KEY.fullmatch(prefix):
            return []  # a pattern for repositories
        repo, revision, path = _parts(prefix)
        directory = path.rpartition("/")[0]
        root = f"datasets/{repo}/resolve/{revision}/"
        url = f"{self._endpoint}/api/datasets/{repo}/tree/{revision}/{quote(directory)}"
        page = f"{url.rstrip('/')}?recursive={'false' if delimiter else 'true'}"
        names: list[str] = []
        while page:
            entries, headers = await in_thread(partial(self._page, page))
            for entry in entries:
                name = root + entry["path"]
                if entry["type"] == "file":
                    names.append(name)
                elif delimiter:
                    names.append(f"{name}/")
            link = _NEXT.search(headers.get("Link") or "")
            page = link[1] if link else ""
            if page and not page.startswith(f"{self._endpoint}/"):
                raise StorageError("the hub's listing goes on at another host: not followed")
        return sorted(name for name in names if name.startswith(prefix))

    def _page(self, url: str) -> tuple[Any, Mapping[str, str]]:
        """A page of a listing: its entries, and the reply's headers."""
        with closing(self.web.open(url, headers={"Accept": "application/json"})) as reply:
            text = body_of(reply, _MAX_JSON_BYTES)
            try:
                return json.loads(text), reply.headers
            except (ValueError, RecursionError):
                raise AttemptError("the reply is not JSON", "refused") from None

    async def put(self, key: str, source: bytes | Path) -> None:
        del key, source
        raise AttemptError(
            "hf:// URLs can be read only: write to a local directory and upload it with the hub's "
            "own tool",
            "refused",
        )


class HubClient(ObstoreClient):
    """The hub: files by obstore, what it has no call for by another client."""

    def __init__(self, store: Any, options: StorageOptions, other: HubWebClient) -> None:
        super().__init__(store, options)
        self._other = other

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        return await self._other.names(prefix, delimiter=delimiter)

    async def put(self, key: str, source: bytes | Path) -> None:
        await self._other.put(key, source)

    def _substitute(self, key: str) -> tuple[WebClient, str] | None:
        # obstore would escape the % of a revision once more.
        if redirects_are_followed(key) and "%" not in _parts(key)[1]:
            return None
        return self._other, key
