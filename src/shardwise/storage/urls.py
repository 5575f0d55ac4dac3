"""The scheme of a URL, and the path of a `file:` URL: text only."""

from __future__ import annotations

import os
import re
from typing import Any
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


def beside(url: str, name: Any) -> str:
    """The URL of a file in the index's directory, or below it; ValueError for any other."""
    if not isinstance(name, str) or not name or name.startswith("/") or "\0" in name:
        raise ValueError(f"the file name {name!r:.80}")
    try:
        _ = os.fsencode(name) if scheme_of(url) in ("", "file") else name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the file name {name!r:.80} holds a lone surrogate") from None
    if "://" in name or ".." in name.replace("\\", "/").split("/"):
        raise ValueError(f"the file {name!r:.80} does not lie beside the index")
    path, mark, query = url.partition("?") if "://" in url else (url, "", "")
    return f"{path.rpartition('/')[0]}/{name}{mark}{query}"
