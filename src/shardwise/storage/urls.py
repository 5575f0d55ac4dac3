"""The scheme of a URL, and the path of a `file:` URL: text only."""

from __future__ import annotations

import re
from urllib.parse import unquote

# Schemes of URLs, and the families of stores that serve them.
FAMILIES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az",
    "http": "http", "https": "http", "hf": "hf", "ais": "ais",
}  # fmt: skip
_SCHEME = re.compile(r"(?P<scheme>pipe(?=:)|[A-Za-z][A-Za-z0-9+.-]*(?=://))")


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case; "" for a local path, `file` for `file:` URLs.

    >>> scheme_of("s3://bucket/a.tar"), scheme_of("a::b.tar")
    ('s3', '')
    """
    # Most names are paths, and each is asked about several times when it is opened.
    if ":" not in url:
        return ""
    if url.startswith("file:"):
        return "file"
    match = _SCHEME.match(url)
    return match["scheme"].lower() if match else ""


def strip_file_scheme(url: str) -> str:
    """The path that a `file:` URL names, with its %-escapes decoded; other text as it is."""
    if scheme_of(url) != "file":
        return url
    path = url.removeprefix("file:").removeprefix("//")
    if path.startswith("localhost/"):
        path = path.removeprefix("localhost")
    return unquote(path)
