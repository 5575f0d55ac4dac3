"""A URL as people may see it: without what proves a right to the file.

Queries and fragments may be signatures, and what stands before an `@` may be a password. Messages,
reprs, logs, index files and the commands show URLs through `shown`; files are opened by the URL
itself. Source: RFC 3986, section 3.
"""

from __future__ import annotations

import re
import shlex
import unicodedata

# One slash is enough: a mistyped URL holds the same secret.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/+)(?P<rest>.*)", re.DOTALL)
# A URL in a text ends with its quotes, or at a space.
_INSIDE = re.compile(
    r"(?P<quote>['\"`])(?P<quoted>[A-Za-z][A-Za-z0-9+.-]*:/+.*?)(?P=quote)"
    r"|(?P<bare>\b[A-Za-z][A-Za-z0-9+.-]*:/+[^\s'\"`<>]+)",
    re.DOTALL,
)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_WEB = ("http", "https")
# abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/...: a container, not a user.
_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")


def shown(url: str) -> str:
    """A URL as it may be shown; a path as it is.

    The query and the fragment of an http(s) URL become `?...` and `#...`; of other URLs, whose
    keys may hold these characters, only where a `=` follows. A user or a password becomes `...`.

    >>> shown("https://me:pass@host/a.tar?sig=abc"), shown("s3://bucket/part?.tar")
    ('https://...@host/a.tar?...', 's3://bucket/part?.tar')
    """
    whole = _URL.fullmatch(url) if ":/" in url else None
    return shown_in(url) if whole is None else _mask_url(whole)


def in_command(url: str) -> str:
    """A URL or path as it may be shown, quoted for a command that is copied into a shell.

    >>> in_command("photos/a b.tar"), in_command("s3://bucket/000.tar")
    ("'photos/a b.tar'", 's3://bucket/000.tar')
    """
    return shlex.quote(shown(url))


def shown_in(text: str) -> str:
    """A text with the URLs in it as they may be shown.

    >>> shown_in("can't read 'https://host/a b.tar?sig=abc': HTTP 403")
    "can't read 'https://host/a b.tar?...': HTTP 403"
    """
    return _INSIDE.sub(_masked_inside, text) if ":/" in text else text


def escaped(text: str, *, keep: str = "") -> str:
    r"""A text that can't steer a terminal: control and format characters as escapes, but `keep`.

    >>> print(escaped("a\x1b[31mb"))
    a\x1b[31mb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        and character not in keep
        else character
        for character in text
    )


def without_query(url: str) -> str:
    """A URL up to its query or fragment; a path as it is.

    >>> without_query("https://host/train/a.tar?sig=a/b")
    'https://host/train/a.tar'
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        return url
    return url[: parts.start("rest")] + _split_query(parts["scheme"], parts["rest"])[0]


def base_name(url: str) -> str:
    """The last part of a URL's path, or of a local path: no query, no fragment.

    >>> base_name("https://host/train/a.tar?sig=a/b")
    'a.tar'
    """
    return without_query(url).rpartition("/")[2]


def _mask_url(url: re.Match[str]) -> str:
    scheme = url["scheme"].lower()
    path, mark = _split_query(scheme, url["rest"])
    authority = path.partition("/")[0]
    user, at, host = authority.rpartition("@")
    if "@" in url["rest"] and not _HOST.fullmatch(host):
        # No port: a password that should have been escaped, which may go on behind a / or ?.
        path, mark = _split_query(scheme, f"...@{url['rest'].rpartition('@')[2]}")
    elif at and not (scheme in _CONTAINER_FIRST and ":" not in user):
        path = f"...@{host}{path[len(authority) :]}"
    return f"{url['scheme']}:{url['slashes']}{path}{mark}{'...' if mark else ''}"


def _masked_inside(match: re.Match[str]) -> str:
    if match["bare"] is not None:
        return shown(match["bare"])
    quote = match["quote"]
    return f"{quote}{shown(match['quoted'])}{quote}"


def _split_query(scheme: str, rest: str) -> tuple[str, str]:
    """The part before the query or the fragment, and the mark that starts it or ""."""
    mark = re.search(r"[?#]" if scheme.lower() in _WEB else r"[?#](?=.*=)", rest, re.DOTALL)
    return (rest, "") if mark is None else (rest[: mark.start()], mark[0])
