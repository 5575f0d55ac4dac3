"""JSON from a web service, for listings: the pages that obstore can't ask for.

Redirects are followed, and credentials stay with the first host. Imports the standard library and
this package.
"""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit

from shardwise.storage.failures import AttemptError, kind_of_status

__all__ = ["json_page"]

_MOST_BYTES = 256 << 20


def json_page(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    body: Any = None,
) -> tuple[Any, Mapping[str, str]]:
    """A JSON document by GET, and the reply's headers.

    Args:
        url: http or https.
        headers: also credentials; not handed on to another host.
        timeout_s: seconds to wait for a byte.
        body: sent as JSON with the request.

    Raises:
        AttemptError: it could not be had.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the caller's scheme is http or https
        url, data=data, headers={"Accept": "application/json", **headers}, method="GET"
    )
    if data is not None:
        request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(_Redirects())
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            text = reply.read(_MOST_BYTES)
            return json.loads(text), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            cause = f"HTTP {error.code} {error.reason}"
        raise AttemptError(cause, kind_of_status(error.code), status=error.code) from None
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, str) else type(error.reason).__name__
        if isinstance(error.reason, socket.gaierror):
            cause = "the host's name is not known"
        raise AttemptError(f"no connection ({cause})", "passing") from None
    except (OSError, http.client.HTTPException) as error:
        raise AttemptError(f"the reply failed ({type(error).__name__})", "passing") from None
    except ValueError:
        raise AttemptError("the reply is not JSON", "refused") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects with the body, but with credentials to the same host and port only."""

    def redirect_request(  # noqa: PLR0917 - the base class's
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request of the next place."""
        # Refuses what is no GET; it leaves the body out.
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is None:
            return None
        # A body would make a POST of it.
        follow.data, follow.method = req.data, "GET"
        if code in (307, 308) and req.data is not None:
            follow.add_header("Content-Type", "application/json")
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            follow.remove_header("Authorization")
        return follow
