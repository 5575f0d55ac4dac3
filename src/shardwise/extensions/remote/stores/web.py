"""HTTP with controlled redirects: the user's headers stay with the first host.

obstore follows every redirect and sends all headers but Authorization and Cookie along, so it is
not used with other headers, which may be secret, or where redirects are restricted. This client is
slower: one connection per request.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from shardwise.extensions.remote.requests.blocking_pool import in_thread
from shardwise.extensions.remote.requests.failures import (
    CERTIFICATE,
    empty_file,
    kind_of_status,
    s3_error_texts,
    short_reply,
)
from shardwise.storage.client import AttemptError, Client, Reply
from shardwise.storage.options import Redirects
from shardwise.storage.protocol import FileStat

_MAX_ERROR_BYTES = 4096
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# Of a signed URL that an error repeats.
_QUERY = re.compile(r"\?\S*=\S*")
# Unescaped in paths; a % starts an escape that the caller made.
_SAFE = "/%~!$&'()*+,;=:@"


@dataclass(frozen=True)
class Web:
    """The settings of requests to a web server.

    Attributes:
        headers: of each request, including credentials: sent to the first host only.
        timeout_s: seconds to wait for a byte.
        redirects: which redirects are followed.
        context: the trusted certificates; None for the system's.
        proxy: its URL; None for the proxy that the environment names.
    """

    headers: Mapping[str, str]
    timeout_s: float
    redirects: Redirects = "any"
    context: ssl.SSLContext | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)

    def open(
        self,
        url: str,
        *,
        method: str = "GET",
        body: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        redirect_urls: list[str] | None = None,
    ) -> Any:
        """An open reply with a status of success, its body unread.

        With `redirect_urls`, no redirect is followed: its target is added to that list.

        Raises:
            AttemptError: no answer, or another status.
        """
        # As bytes of UTF-8, which is how obstore sends them.
        sent = {name: text.encode().decode("latin-1") for name, text in self.headers.items()}
        request = urllib.request.Request(  # noqa: S310 - the caller's scheme is http or https
            url, data=body, method=method, headers={**sent, **(headers or {})}
        )
        handlers: list[Any] = [
            _Redirects(self, redirect_urls),
            urllib.request.HTTPSHandler(context=self.context),
        ]
        if self.proxy is not None:
            handlers.append(urllib.request.ProxyHandler(dict.fromkeys(_SCHEMES, self.proxy)))
        try:
            return urllib.request.build_opener(*handlers).open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise failed_status(error) from None
        except urllib.error.URLError as error:
            raise _unreachable(error.reason) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AttemptError(f"the reply failed ({type(error).__name__})", "passing") from None

    def redirect_of(self, url: str, *, method: str) -> str:
        """The target of the redirect of a request without a body; "" if it is answered.

        Raises:
            AttemptError: it is refused.
        """
        targets: list[str] = []
        try:
            self.open(url, method=method, body=b"", redirect_urls=targets).close()
        except AttemptError:
            if not targets:
                raise
        return targets[0] if targets else ""


_SCHEMES = ("http", "https")


def _unreachable(reason: object) -> AttemptError:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return AttemptError(f"{CERTIFICATE} ({reason.verify_message})", "refused")
    cause = reason if isinstance(reason, str) else type(reason).__name__
    if isinstance(reason, socket.gaierror):
        cause = "the host's name is not known"
    return AttemptError(f"no connection ({cause})", "passing")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of reads; the user's headers go to the first host only."""

    def __init__(self, web: Web, targets: list[str] | None) -> None:
        self._web = web
        self._targets = targets

    def redirect_request(  # noqa: PLR0917 - the base class's
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        redirects = self._web.redirects
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        is_here = (before.scheme, before.netloc) == (after.scheme, after.netloc)
        if redirects != "any" and not (redirects == "same-host" and is_here):
            raise AttemptError(
                f"HTTP {code}: the server redirects to {after.scheme}://{after.hostname}, which "
                f"redirects={redirects!r} forbids",
                "refused",
            )
        if before.scheme == "https" and after.scheme != "https":
            raise AttemptError(f"HTTP {code}: a redirect from https to {after.scheme}", "refused")
        if self._targets is not None:
            self._targets.append(newurl)
            raise AttemptError(f"HTTP {code}: a redirect", "refused", status=code)
        # The base class refuses methods other than GET and HEAD.
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and not is_here:
            for name in self._web.headers:
                # urllib capitalizes the names of headers.
                follow.remove_header(name.capitalize())
        return follow


class WebClient(Client):
    """A web server, one attempt at a time; `root` is the URL before a key."""

    def __init__(self, root: str, web: Web) -> None:
        self._root = root
        self.web = web

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        return await in_thread(partial(self._get, key, start, stop, etag))

    async def head(self, key: str) -> FileStat:
        try:
            return (await self.get(key, 0, 1, "")).stat
        except AttemptError as error:
            # An empty file has no first byte.
            if error.kind != "ended":
                raise
        return FileStat(0, 0, "")

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:  # noqa: ARG002
        return []

    async def put(self, key: str, source: bytes | Path) -> None:
        await in_thread(partial(put_file, self.web, self.url(key), source))

    async def remove(self, key: str) -> None:
        reply = await in_thread(partial(self.web.open, self.url(key), method="DELETE"))
        reply.close()

    def url(self, key: str) -> str:
        """The URL of a key."""
        return f"{self._root}/{quote(key, safe=_SAFE)}" if key else self._root

    def _get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        began = time.monotonic()
        with closing(self.web.open(self.url(key), headers=headers)) as reply:
            head_s = time.monotonic() - began
            num_bytes, stat = check_part(reply, start, stop)
            data = body_of(reply, num_bytes)
        if len(data) != num_bytes:
            raise short_reply(len(data), num_bytes)
        return Reply(memoryview(data), stat, head_s)


def put_file(web: Web, url: str, source: bytes | Path) -> None:
    """Send bytes, or a local file, by one request. Raises AttemptError."""
    if isinstance(source, bytes):
        web.open(url, method="PUT", body=source).close()
        return
    with source.open("rb") as file:
        length = {"Content-Length": str(source.stat().st_size)}
        web.open(url, method="PUT", body=file, headers=length).close()


def body_of(reply: Any, max_bytes: int) -> bytes:
    """Read up to `max_bytes` of a reply. Raises AttemptError."""
    try:
        data: bytes = reply.read(max_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise AttemptError(f"the reply failed ({type(error).__name__})", "passing") from None
    return data


def failed_status(reply: Any) -> AttemptError:
    """The failure of a reply whose status is an error; reads a part of its body."""
    said = s3_error_texts(reply.read(_MAX_ERROR_BYTES).decode("utf-8", "replace"))
    cause = _QUERY.sub("?...", ": ".join([f"HTTP {reply.status} {reply.reason}", *said]))
    return AttemptError(cause, kind_of_status(reply.status), status=reply.status)


def check_part(reply: Any, start: int, stop: int) -> tuple[int, FileStat]:
    """The length of a reply to a request for bytes [start, stop), and its object's version.

    Raises:
        AttemptError: it is another part, or no part.
    """
    content_range = _RANGE.fullmatch(reply.headers.get("Content-Range") or "")
    if reply.status == 200 and reply.headers.get("Content-Length") == "0":
        raise empty_file()
    if reply.status != 206 or content_range is None:
        raise AttemptError(_whole_reply(reply.headers), "refused")
    first, last, num_bytes = map(int, content_range.groups())
    if first != start or last + 1 != min(stop, num_bytes):
        raise AttemptError(
            f"the server sent bytes {first} to {last + 1} where {start} to {stop} were asked for",
            "passing",
        )
    stat = FileStat(num_bytes, _mtime_ns(reply), reply.headers.get("ETag") or "")
    return last + 1 - first, stat


def _mtime_ns(reply: Any) -> int:
    try:
        changed = parsedate_to_datetime(reply.headers.get("Last-Modified") or "")
    except ValueError:
        return 0
    return max(0, int(changed.timestamp())) * 1_000_000_000


def _whole_reply(headers: Mapping[str, str]) -> str:
    """Explain why a server sent no part of a file."""
    encoding = headers.get("Content-Encoding") or "identity"
    if encoding != "identity":
        return f"the server compresses the file (Content-Encoding: {encoding!r:.40}): switch it off"
    if (headers.get("Content-Type") or "").startswith("text/html"):
        return "the server sent an HTML page, such as a login or an error page, not the file"
    return "the server ignores the Range header: it can't send parts"
