"""`gopen`: a stream for any URL, for reading or writing.

Object stores are read and written, and web servers read, in this process, through
`shardwise.storage`; other schemes by programs without a shell. Only `pipe:` has a shell.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from http.client import HTTPException
from subprocess import PIPE
from typing import Any

from shardwise.base.errors import StorageError
from shardwise.base.shown import shown
from shardwise.compat.environment import is_on, variable
from shardwise.compat.webdataset import utils
from shardwise.extensions.remote.program_pipe import Pipe
from shardwise.extensions.remote.streams import Upload, open_body, open_stream
from shardwise.storage.urls import scheme_of, strip_file_scheme

# Shown with every URL when GOPEN_VERBOSE is set: programs put the name of their node here.
info: dict[str, Any] = {}

# A program that finds its reader gone: SIGPIPE as a shell reports it, curl, and curl's upload.
_READER_GONE = (141, 23)
_WRITER_GONE = (141, 26)

# A URL that is signed for GET alone refuses HEAD; the simplest servers know no ranges.
_WANTS_PLAIN_GET = re.compile(r"HTTP 4\d\d|Range header|[Cc]ontent.?[Ll]ength")


def gopen_pipe(url: str, mode: str = "rb", bufsize: int = 8192) -> Pipe:
    """Run what follows `pipe:` in a shell; the stream is its output, or for "wb" its input."""
    if utils.enforce_security:
        raise ValueError("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs")
    command = url.removeprefix("pipe:")
    return Pipe(command, mode=mode, shell=True, bufsize=bufsize, ignore_status=[141])  # noqa: S604


def _program(command: Sequence[str], url: str, mode: str, bufsize: int) -> Pipe:
    if shutil.which(command[0]) is None:
        raise OSError(f"{shown(url)!r} needs the program {command[0]!r}, which is not installed")
    ignored = _READER_GONE if mode[0] == "r" else _WRITER_GONE
    pipe = Pipe(command, mode=mode, bufsize=bufsize, ignore_status=ignored)
    pipe.label = f"{command[0]!r} for {shown(url)!r}"
    return pipe


def gopen_curl(url: str, mode: str = "rb", bufsize: int = 8192) -> Pipe:
    """Read or upload by `curl`, which gives up after a minute without a byte."""
    curl = ["curl", "-f", "-s", "-S", "-L", "--connect-timeout", "30"]
    curl += ["--speed-limit", "1", "--speed-time", "60"]
    own = ["--retry", "5", "--retry-delay", "2", url] if mode[0] == "r" else ["-T", "-", url]
    return _program([*curl, *own], url, mode, bufsize)


def gopen_ais(url: str, mode: str = "rb", bufsize: int = 8192) -> Pipe:
    """Read or upload by `ais`, AIStore's own program, which also knows its backend buckets."""
    command = ["ais", "get", url, "-"] if mode[0] == "r" else ["ais", "put", "-", url]
    return _program(command, url, mode, bufsize)


def gopen_storage(url: str, mode: str = "rb", bufsize: int = 8192) -> Any:
    """Read a store's or web server's file here (by one GET if need be), or write to a store."""
    scheme = scheme_of(url)
    if mode[0] == "r":
        try:
            return open_stream(url, buffer_bytes=bufsize)
        except StorageError as error:
            if scheme not in ("http", "https") or not _WANTS_PLAIN_GET.search(str(error)):
                raise
            try:
                return open_body(url, buffer_bytes=bufsize)
            except (OSError, HTTPException):
                raise error from None
    if scheme in ("http", "https"):
        return gopen_curl(url, mode, bufsize)
    return gopen_ais(url, mode, bufsize) if scheme == "ais" else Upload(url)


gopen_hf = gopen_gsutil = gopen_storage


def gopen_file(url: str, mode: str = "rb", bufsize: int = 8192) -> Any:
    return open(strip_file_scheme(url), mode, buffering=bufsize)


def set_options(obj: Any, **options: Any) -> bool:
    """Set `timeout`, `ignore_errors`, `ignore_status` of a pipe; return whether it is one."""
    for name, value in options.items():
        if isinstance(obj, Pipe) and value is not None:
            setattr(obj, name, value)
    return isinstance(obj, Pipe)


def gopen_htgs(url: str, mode: str = "rb", bufsize: int = 8192) -> Any:
    if mode[0] != "r":
        raise ValueError(f"can't write to {shown(url)!r}: write to gs://")
    return gopen_storage(re.sub(r"(?i)^htgs://", "gs://", url), mode, bufsize)


def gopen_error(url: str, *args: Any, **kw: Any) -> Any:  # noqa: ARG001 - a handler's form
    known = ", ".join(sorted(name for name in gopen_schemes if not name.startswith("_")))
    raise ValueError(
        f"{shown(url)}: no gopen handler defined; there are {known}, and "
        "webdataset.gopen_schemes[scheme] = function adds one"
    )


# The opener of each scheme: `function(url, mode, bufsize, **kw)`. Users may change it.
gopen_schemes: dict[str, Callable[..., Any]] = {
    "__default__": gopen_error,
    "pipe": gopen_pipe,
    **dict.fromkeys(("http", "https", "s3", "gs", "az", "hf", "ais"), gopen_storage),
    "htgs": gopen_htgs,
    **dict.fromkeys(("ftp", "ftps", "sftp", "scp"), gopen_curl),
}


def rewrite_url(url: str) -> str:
    """Rewrite a URL's start by the first rule of GOPEN_REWRITE, `pattern=replacement;...`."""
    rules = variable("GOPEN_REWRITE")
    if rules is None:
        return url
    if utils.enforce_security:
        raise ValueError(
            "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables"
        )
    for rule in filter(None, rules.split(";")):
        pattern, separator, replacement = rule.partition("=")
        if not separator:
            raise ValueError(f"GOPEN_REWRITE={rules!r}: the rule {rule!r} has no '='")
        rewritten = re.sub(f"^(?:{pattern})", replacement, url)
        if rewritten != url:
            _say("GOPEN REWRITE", url, "->", rewritten)
            return rewritten
    return url


def gopen(url: str | os.PathLike[str], mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any:
    """Open a URL as a stream of bytes.

    Environment variables: GOPEN_VERBOSE=1 shows what is opened, GOPEN_BUFFER is the buffer size for
    local files, GOPEN_REWRITE changes URLs (see `rewrite_url`), and the schemes in USE_AIS_FOR
    (`gs:s3`) are read by the program `ais`.
    """
    if mode not in ("rb", "wb"):
        raise ValueError(f"mode={mode!r}: 'rb' or 'wb'")
    url = os.fspath(url)
    _say("GOPEN", url)
    if url == "-":
        return sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
    url = rewrite_url(url)
    path = local_name(url)
    if path is not None:
        if utils.enforce_security:
            raise ValueError("gopen: unsafe_gopen is False, cannot open local files")
        return open(path, mode, buffering=int(variable("GOPEN_BUFFER") or -1))
    scheme = _scheme(url)
    if scheme in (variable("USE_AIS_FOR") or "").split(":"):
        return gopen_ais(url, mode, bufsize, **kw)
    return gopen_schemes.get(scheme, gopen_schemes["__default__"])(url, mode, bufsize, **kw)


def local_name(url: str) -> str | None:
    """The path of a local file; None for another URL. `#` and `?` are letters like others."""
    return strip_file_scheme(url) if _scheme(url) in ("", "file") else None


def _scheme(url: str) -> str:
    """The scheme of a URL; those that users have added need no `//`."""
    before, colon, _ = url.partition(":")
    return before if colon and before in gopen_schemes else scheme_of(url)


def reader(url: str | os.PathLike[str], **kw: Any) -> Any:
    return gopen(url, "rb", **kw)


def _say(*words: object) -> None:
    if is_on("GOPEN_VERBOSE"):
        sys.stderr.write(" ".join(map(str, (*words, info))) + "\n")
