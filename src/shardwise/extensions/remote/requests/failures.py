"""Failures of a single attempt, and the library's errors for them: never with a secret.

Only the status of a server's answer and its own code and message are passed on: bodies and URLs of
stores may hold keys and signatures.
"""

from __future__ import annotations

import re
from html import unescape

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.base.shown import escaped, shown_in
from shardwise.storage.client import AttemptError, Kind

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b ?([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
# The first line: Azure puts the request's number and time on others.
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
_UNREADABLE_NAME = re.compile(
    r'Encountered object with invalid path: Error parsing Path "(.{0,200}?)":', re.DOTALL
)
# Metadata servers of Amazon, Azure and Google, which give instances their credentials.
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


def library_error(failed: AttemptError, url: str, *, verb: str, tries: str = "") -> Exception:
    """The library's error for a failed attempt that is not retried."""
    path, query, _ = url.partition("?")
    if failed.kind == "missing":
        name = path.rpartition("/")[2]
        hint = "; a directory of a store is written with a slash at its end"
        hint = hint if name and "." not in name else ""
        return MissingShardError(f"no such file: {failed.cause}{hint}", url=url)
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
        if query and path.startswith("http"):
            advice += "; the signature of a URL may have expired, so make such URLs anew"
        if path.startswith("hf://"):
            advice += (
                "; a private or gated dataset needs the token of a user who may read it (HF_TOKEN, "
                "or token in storage=), and the hub answers so where there is no such dataset, too"
            )
    return StorageError(f"can't {verb} {url!r}: {failed.cause}{tries}{advice}")


def no_answer(seconds: float) -> AttemptError:
    """No byte arrived in an attempt's time."""
    return AttemptError(f"no answer in {seconds:g} s (attempt_timeout_s)", "passing")


def short_reply(num_bytes: int, announced: int) -> AttemptError:
    """A reply broke off."""
    return AttemptError(
        f"the reply has {num_bytes} bytes where {announced} were announced", "passing"
    )


def empty_file() -> AttemptError:
    """Error for a range of an empty file; nginx answers it with HTTP 200."""
    return AttemptError("the file is empty (0 bytes)", "ended")


def kind_of_status(status: int) -> Kind:
    """The kind of failure of an HTTP status."""
    if status in (401, 403):
        return "denied"
    if status in (404, 410):
        return "missing"
    if status == 412:
        return "changed"
    if status == 416:
        return "ended"
    return "passing" if status in (408, 425, 429) or status >= 500 else "refused"


def s3_error_texts(text: str) -> list[str]:
    """Code and message in the XML of an S3 error; [] if it has neither."""
    found = (_CODE.search(text), _MESSAGE.search(text))
    return [escaped(unescape(each[1]).strip()) for each in found if each]


def from_obstore(error: Exception) -> AttemptError:
    """The failure of an exception of obstore, without the debug part of its text."""
    text = str(error)
    status = _STATUS.search(text)
    if status is not None:
        cause = ": ".join([f"HTTP {status[1]} {status[2].strip()}".strip(), *s3_error_texts(text)])
        return AttemptError(cause, kind_of_status(int(status[1])), status=int(status[1]))
    if listed := _UNREADABLE_NAME.match(text):
        return AttemptError(
            f"the object {listed[1]!r} there has a name that can't be listed or read, with a line "
            "break, '..' or an empty part: rename it, or name the others by braces or in a list",
            "refused",
        )
    name, first_line = type(error).__name__, text.partition("\n")[0]
    unknown: tuple[str, Kind] = (shown_in(first_line)[:200], "passing")
    known = ((cause, kind) for sign, cause, kind in _SIGNS if sign in text or sign == name)
    cause, kind = next(known, unknown)
    if kind == "passing" and any(host in text for host in _METADATA_HOSTS):
        cause = (
            f"no credentials: none were given or found, and asking the instance failed ({cause})"
        )
    return AttemptError(cause, kind)


CERTIFICATE = (
    "the server's certificate is not trusted: give the one of its authority, a path or PEM "
    "text, in storage={'root_certificate': ...} or SSL_CERT_FILE"
)
NO_RANGES = (
    "the server answered HTTP 200, not 206, where a part of a file was asked for: it ignores the "
    "Range header, as `python -m http.server` does (serve the files by nginx, caddy or `rclone "
    "serve http`, or copy them here), compresses what it sends (Content-Encoding), or sends a page "
    "in place of the file, such as a login page"
)
# The exception's name or a part of its text, the cause, and the kind.
_SIGNS: tuple[tuple[str, str, Kind], ...] = (
    ("FileNotFoundError", "the store has no such object", "missing"),
    ("PreconditionError", "its ETag is another one", "changed"),
    ("PermissionDeniedError", "access denied", "denied"),
    ("UnauthenticatedError", "access denied", "denied"),
    ("RangeNotSupported", NO_RANGES, "refused"),
    ("NotPartial", NO_RANGES, "refused"),
    (
        "redirect without LOCATION",
        "the bucket is in another region: set AWS_REGION, or aws_region in storage=",
        "refused",
    ),
    ("InvalidCertificate", CERTIFICATE, "refused"),
    (
        "empty path segment",
        "the name has an empty part (//), which stores can't be asked for",
        "refused",
    ),
    ("StartTooLarge", "the range begins after the end", "ended"),
    ("InvalidPathError", "the store takes no such name", "refused"),
    ("Error parsing Path", "the store takes no such name", "refused"),
    ("error following redirect", "the server's redirects do not end, or lead nowhere", "refused"),
    (
        "Content-Length Header missing",
        "the server does not say how long the file is (Content-Length): it makes or compresses its "
        "answers while it sends them; serve the files as they are",
        "refused",
    ),
    ("dns error", "the host's name is not known", "passing"),
    ("ConnectionRefused", "connection refused", "passing"),
    ("Connection refused", "connection refused", "passing"),
    ("IncompleteBody", "the reply was cut short", "passing"),
    ("UnexpectedEof", "the reply was cut short", "passing"),
    ("ConnectionReset", "the connection was reset", "passing"),
    ("TimedOut", "no answer in time", "passing"),
    ("kind: Timeout", "no answer in time", "passing"),
    ("kind: Connect", "no connection", "passing"),
    ("kind: Interrupted", "the reply was cut short", "passing"),
    ("request or response body error", "the reply was cut short", "passing"),
    ("error sending request", "the connection was lost", "passing"),
)
