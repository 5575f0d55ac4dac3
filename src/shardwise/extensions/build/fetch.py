"""`sw.fetch`: the bytes behind a URL as a field of a sample, several fetches under way at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any

from shardwise.base.arguments import check_number, suggest_names
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.build.http_get import GetError, get
from shardwise.plan.arguments import whole

# Before the second try, the third, ...: a server that is overloaded gets more time each time.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 8.0
# Fetches that are started before the oldest of them is returned, for each thread: one URL that
# times out holds up its own thread, and the others continue meanwhile.
_AHEAD = 4
_MAX_TIMEOUT_S, _MAX_THREADS = 86_400, 1024


class FetchError(DataError):
    """A URL that gave no bytes. `word` is the reason by which `sw.build` counts."""

    def __init__(self, message: str, *, word: str = "failed") -> None:
        super().__init__(message)
        self.word = word


@dataclass(frozen=True)
class Fetch:
    """A map function that `fetch` makes; pickles for worker processes."""

    field: str
    into: str
    timeout_s: float
    retries: int
    max_bytes: int
    # It changes no sample, so a build that continues may have another.
    concurrency: int = attribute(repr=False, compare=False)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample with the bytes."""
        return self._fetch_sample(sample, threading.Event())

    def map_many(self, samples: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the result for each sample in turn, or the error that it raises."""
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="shardwise-fetch")
        waiting: deque[Future[Any]] = deque()
        ended = threading.Event()
        try:
            for sample in samples:
                waiting.append(pool.submit(self._result_or_error, sample, ended))
                if len(waiting) == _AHEAD * self.concurrency:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # A build that fails here waits for the tries under way, and for no more of them.
            ended.set()
            pool.shutdown(cancel_futures=True)

    def _result_or_error(self, sample: Any, ended: threading.Event) -> Any:
        try:
            return self._fetch_sample(sample, ended)
        except (DataError, TypeError) as error:
            return error

    def _fetch_sample(self, sample: Mapping[str, Any], ended: threading.Event) -> dict[str, Any]:
        url = self._url_of(sample)
        return {**sample, self.into: self._bytes(url, ended)}

    def _url_of(self, sample: Mapping[str, Any]) -> str:
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"fetch({self.field!r}) takes samples, not a {type(sample).__name__}: give "
                f"{{{self.field!r}: url}} for each URL"
            )
        url = sample.get(self.field)
        # A tar without decoders gives bytes.
        if isinstance(url, bytes | bytearray | memoryview):
            url = bytes(url).decode("utf-8", "replace")
        if not isinstance(url, str) or not url.strip():
            raise FetchError(f"no url: the field {self.field!r} holds none", word="no url")
        return url.strip()

    def _bytes(self, url: str, ended: threading.Event) -> bytes:
        pause_s = _FIRST_PAUSE_S
        for left in range(self.retries, -1, -1):
            try:
                return get(url, timeout_s=self.timeout_s, max_bytes=self.max_bytes)
            except GetError as error:
                if not error.passes or not left or ended.wait(pause_s):
                    # Without its query and user, which may be secret.
                    message = f"{error.word}: {shown(url)}"
                    raise FetchError(message, word=error.word) from None
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        raise AssertionError("the last try returns or raises")


@suggest_names
def fetch(
    field: str = "url",
    *,
    into: str = "jpg",
    timeout_s: float = 10.0,
    retries: int = 2,
    max_bytes: int = 32 << 20,
    concurrency: int = 16,
) -> Fetch:
    """A map function for `sw.build` that fetches each sample's URL.

    Only http and https are fetched, over TLS with verified certificates, without a proxy, and
    through at most 5 redirects, none of them to another scheme but from http to https. Nothing of
    the environment is read. The bytes are not looked at: decode them in a second build, or in
    training.

    A URL without bytes raises. With `on_error="record"` the report counts such URLs by a word:
    "timeout", "refused", "no host", "no connection", "cut short", "http 503" (and 429, 408, 425 and
    every 5xx) after `retries` more tries; "http 404" (and all others), "too large", "not http",
    "bad url", "no url", "too many redirects", "redirect from https to http", "certificate", "tls",
    "compressed" and "not a reply of http" at once. `retry_errors=True` tries them again.

    Args:
        field: holds the URL, as text or bytes.
        into: the field for the bytes; its name is the extension in a tar.
        timeout_s: seconds for one try, all of it: connection, redirects and body. Looking up the
            host's name has the system's own limit.
        retries: further tries after an error that may pass, 0.5, 1, 2, ... seconds later.
        max_bytes: the largest body; of a larger one no more is read.
        concurrency: URLs that a process of the build fetches at once. Up to four times as many
            bodies wait in memory for the one before them.

    Returns:
        A function of a sample that returns it with the bytes; it can be pickled.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.

    Examples:
        >>> import shardwise as sw
        >>> report = sw.build(
        ...     [{"url": "file:///etc/passwd"}, {"url": None}],
        ...     "pictures/{shard:05d}.tar",
        ...     map=sw.fetch("url", into="jpg", timeout_s=5),
        ...     on_error="record",
        ...     num_workers=0,
        ... )
        >>> report["failed"]
        {'no url': 1, 'not http': 1}
    """
    for name, value in (("field", field), ("into", into)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not a {type(value).__name__}")
        if not value or value == "__key__":
            raise ValueError(f"{name}={value!r}: give the name of a field, such as 'jpg'")
    check_number("timeout_s", timeout_s)
    if timeout_s > _MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s={timeout_s}: at most {_MAX_TIMEOUT_S} seconds, a day")
    return Fetch(
        field=field,
        into=into,
        timeout_s=float(timeout_s),
        retries=whole("retries", retries, least=0),
        max_bytes=whole("max_bytes", max_bytes, least=1),
        concurrency=whole("concurrency", concurrency, least=1, most=_MAX_THREADS),
    )
