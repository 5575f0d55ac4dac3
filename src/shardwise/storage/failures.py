"""How an attempt at a request fails, and what the user is told; never a secret.

Of what a server says only the status and its own code and message are passed on: bodies and URLs
of stores may hold keys and signatures. Imports `shardwise.errors`.
"""

from __future__ import annotations

import re
from typing import Literal

from shardwise.errors import DataError, MissingShardError, StaleIndexError, StorageError

__all__ = ["AttemptError", "Kind", "explained", "from_obstore", "kind_of_status", "shown"]

Kind = Literal["missing", "denied", "changed", "ended", "refused", "passing"]

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b ?([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})")
# Where instances of Amazon, Azure and Google ask for credentials.
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


class AttemptError(Exception):
    """One attempt failed.

    Attributes:
        cause: what happened, for the user.
        kind: "passing" failures are worth another attempt; all others are final.
        is_answer: whether a server said so, so that there is one.
    """

    def __init__(self, cause: str, kind: Kind, *, is_answer: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.kind: Kind = kind
        self.is_answer = is_answer or kind != "passing"


def shown(url: str) -> str:
    """A URL as messages may show it: a query can be a signature, which opens what it is for.

    >>> shown("https://host/a.tar?sig=abc")
    'https://host/a.tar?...'
    """
    path, is_cut, _ = url.partition("?")
    return f"{path}?..." if is_cut and url.lower().startswith("http") else url


def explained(failed: AttemptError, url: str, *, verb: str, tries: str = "") -> Exception:
    """The library's error for a failed attempt that is not repeated."""
    url = shown(url)
    if failed.kind == "missing":
        return MissingShardError(f"no such file: {failed.cause}", url=url)
    if failed.kind == "changed":
        return StaleIndexError(
            f"the file was replaced while it was in use: {failed.cause}; index it anew, and begin "
            "the epoch anew",
            url=url,
        )
    if failed.kind == "ended":
        return DataError(failed.cause, url=url)
    advice = ""
    if failed.kind == "denied":
        advice = ": check the credentials, and what they allow"
    return StorageError(f"can't {verb} {url!r}: {failed.cause}{tries}{advice}")


def kind_of_status(status: int) -> Kind:
    """What a status that is no success means for another attempt."""
    if status in (401, 403):
        return "denied"
    if status in (404, 410):
        return "missing"
    if status == 412:
        return "changed"
    if status == 416:
        return "ended"
    return "passing" if status in (408, 425, 429) or status >= 500 else "refused"


def from_obstore(error: Exception) -> AttemptError:
    """What an exception of obstore means. Its text has a debug part, which must not get out."""
    text = str(error)
    status = _STATUS.search(text)
    if status is not None:
        said = [each[1].strip() for each in (_CODE.search(text), _MESSAGE.search(text)) if each]
        cause = ": ".join([f"HTTP {status[1]} {status[2].strip()}".strip(), *said])
        return AttemptError(cause, kind_of_status(int(status[1])), is_answer=True)
    for sign, cause, kind in _SIGNS:
        if sign in text or sign == type(error).__name__:
            return AttemptError(cause, kind)
    cause = _network_cause(text)
    if any(host in text for host in _METADATA_HOSTS):
        cause = (
            f"no credentials: none were given or found, and asking the instance failed ({cause})"
        )
    return AttemptError(cause or _first_line(text), "passing")


# By the exception's name, or by what its text holds.
_SIGNS: tuple[tuple[str, str, Kind], ...] = (
    ("FileNotFoundError", "the store has no such object", "missing"),
    ("PreconditionError", "its ETag is another one", "changed"),
    ("PermissionDeniedError", "access denied", "denied"),
    ("UnauthenticatedError", "access denied", "denied"),
    ("RangeNotSupported", "the server ignores the Range header: it can't send parts", "refused"),
    ("NotPartial", "the server ignores the Range header: it can't send parts", "refused"),
    (
        "redirect without LOCATION",
        "the bucket is in another region: set AWS_REGION, or aws_region in storage=",
        "refused",
    ),
    ("StartTooLarge", "the range begins after the end", "ended"),
    ("InvalidPathError", "the store takes no such name", "refused"),
)


def _network_cause(text: str) -> str:
    for sign, cause in (
        ("dns error", "the host's name is not known"),
        ("ConnectionRefused", "connection refused"),
        ("Connection refused", "connection refused"),
        ("IncompleteBody", "the reply was cut short"),
        ("UnexpectedEof", "the reply was cut short"),
        ("ConnectionReset", "the connection was reset"),
        ("TimedOut", "no answer in time"),
        ("kind: Timeout", "no answer in time"),
        ("certificate", "the server's certificate is not trusted"),
        ("kind: Connect", "no connection"),
        ("kind: Interrupted", "the reply was cut short"),
        ("request or response body error", "the reply was cut short"),
        ("error sending request", "the connection was lost"),
    ):
        if sign in text:
            return cause
    return ""


def _first_line(text: str) -> str:
    """The first line without what may follow a `?` in a URL, and not too much of it."""
    line = text.partition("\n")[0]
    return re.sub(r"\?[^\s\"']+", "?...", line)[:200]
