"""Signed requests with the standard library: what tests put into stores, and ask them for.

The tests' own client shares no code with what they test, and no thread that a fork would lose.
Sources: AWS Signature Version 4 for S3; Azure Storage "Authorize with Shared Key".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit


@dataclass(frozen=True)
class Reply:
    """A whole answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def expect(self, *statuses: int) -> Reply:
        """This, if its status is one of these."""
        assert self.status in statuses, f"{self.status}: {self.body[:500]!r}"
        return self


def plain_request(
    url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Reply:
    """One request over a connection of its own; `Content-Length` is set where there is a body."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target or "/", body=body or None, headers=dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, found, answer.read())
    finally:
        connection.close()


def s3_request(
    method: str,
    endpoint: str,
    path: str,
    *,
    access_key: str,
    secret_key: str,
    region: str = "us-east-1",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """A request to `/path` of an S3 endpoint, without a query."""
    now = datetime.now(UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    target = quote("/" + path.lstrip("/"), safe="/-_.~")
    digest = hashlib.sha256(body).hexdigest()
    signed = {
        "host": urlsplit(endpoint).netloc,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
    }
    names = ";".join(signed)
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    canonical = f"{method}\n{target}\n\n{lines}\n{names}\n{digest}"
    scope = f"{day}/{region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = _hmac(key, part)
    signature = _hmac(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}").hex()
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={access_key}/{scope},"
        f"SignedHeaders={names},Signature={signature}"
    )
    sent = {**signed, "authorization": authorization, **(headers or {})}
    return plain_request(endpoint.rstrip("/") + target, method=method, headers=sent, body=body)


def azure_request(
    method: str,
    endpoint: str,
    path: str,
    *,
    account: str,
    key: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """A request to `/path` below a blob endpoint whose URL ends in the account's name."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    own = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    sent = {**own, **{name.lower(): value for name, value in (headers or {}).items()}}
    target = urlsplit(endpoint).path.rstrip("/") + quote("/" + path.lstrip("/"))
    standard = ("content-encoding", "content-language")
    after = ("content-md5", "content-type", "date", "if-modified-since", "if-match")
    after += ("if-none-match", "if-unmodified-since", "range")
    length = str(len(body)) if body else ""
    lines = [method, *(sent.get(name, "") for name in standard), length]
    lines += [sent.get(name, "") for name in after]
    lines += [f"{name}:{sent[name]}" for name in sorted(sent) if name.startswith("x-ms-")]
    lines.append(f"/{account}{target}")
    lines += [f"{name}:{value}" for name, value in sorted((query or {}).items())]
    signature = base64.b64encode(_hmac(base64.b64decode(key), "\n".join(lines))).decode()
    sent["authorization"] = f"SharedKey {account}:{signature}"
    parts = urlsplit(endpoint)
    url = f"{parts.scheme}://{parts.netloc}{target}"
    if query:
        url += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    if not body and method == "PUT":
        sent["content-length"] = "0"
    return plain_request(url, method=method, headers=sent, body=body)


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
