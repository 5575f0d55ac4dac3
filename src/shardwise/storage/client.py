"""The client of a store, which makes single attempts, and the stores that a program adds by scheme.

`StorageOptions` carry these: a dataset that is pickled for worker processes, Ray or a build brings
the stores along that its process has.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shardwise.storage.protocol import FileStat
from shardwise.storage.urls import FAMILIES

Kind = Literal["missing", "denied", "changed", "ended", "refused", "passing"]

# Requests to a client without streams are for pieces of at least 8 MiB.
_MIN_PIECE_BYTES = 8 << 20


class AttemptError(Exception):
    """One attempt failed; "passing" failures are worth another one. `status` is HTTP's, or 0."""

    def __init__(self, cause: str, kind: Kind, *, status: int = 0) -> None:
        super().__init__(cause)
        self.cause = cause
        self.kind: Kind = kind
        self.status = status

    @property
    def is_answer(self) -> bool:
        """Whether a server answered."""
        return self.status > 0 or self.kind != "passing"


class ObjectRange(NamedTuple):
    """Bytes [start, stop) of an object."""

    key: str
    start: int
    stop: int


class Reply(NamedTuple):
    """Bytes of an object, the object's version, and the seconds to the first byte."""

    data: memoryview
    stat: FileStat
    head_s: float


class Client(ABC):
    """A client of one store: raises AttemptError, never retries."""

    moves_objects = False
    """Whether an object may be missing for seconds because the store moves it between servers."""
    has_many = False
    """Whether `get_many` is one request."""

    @abstractmethod
    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        """Bytes [start, stop) of an object: all of them, or fewer where it ends before.

        With an `etag`, of that version only.
        """

    async def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """The same as the bytes arrive, in pieces of about `piece_bytes`.

        Of a client that can't stream, each piece is a request.
        """
        piece_bytes = max(_MIN_PIECE_BYTES, piece_bytes)
        while start < stop:
            reply = await self.get(key, start, min(stop, start + piece_bytes), etag)
            if not reply.data:
                return
            yield reply
            start += len(reply.data)

    async def get_many(self, ranges: Sequence[ObjectRange]) -> list[memoryview | None]:
        """The bytes of ranges of many objects; None for each that is not in the reply."""
        raise NotImplementedError

    @abstractmethod
    async def head(self, key: str) -> FileStat:
        """The version under a key."""

    @abstractmethod
    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys that start with a prefix; with a delimiter, those of one directory only.

        Directories end in a slash.
        """

    @abstractmethod
    async def put(self, key: str, source: bytes | Path) -> None:
        """Store an object whole; the one before is replaced at the end."""

    async def replace(self, key: str, source: bytes | Path, etag: str) -> None:
        """Store an object in place of that version only."""
        del key, source, etag
        raise AttemptError("this store does not compare versions before it stores", "refused")

    @abstractmethod
    async def remove(self, key: str) -> None:
        """Remove an object."""


# Called with a store's root and the user's `StorageOptions`.
ClientFactory = Callable[[str, Any], Client]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
# The one state of a process that is not an argument: a URL in a list names its store by the scheme
# alone. It only grows.
_FACTORIES: dict[str, ClientFactory] = {}


def register(scheme: str, factory: ClientFactory) -> None:
    """Let URLs of a scheme be read and written by a client of your own.

    It holds for this process, and for the worker processes, Ray tasks and builds that get datasets
    from it. Register a scheme before the first dataset whose URLs have it. A scheme that this
    library reads itself keeps its own client; another call for a scheme replaces the factory.

    Args:
        scheme: of the URLs, in lower case: "mem" for "mem://bucket/a.tar".
        factory: called with the store's root ("mem://bucket") and the user's options, at the first
            request to it in each process; returns the client. It must be picklable, or a function
            of the main program.

    Raises:
        TypeError: the factory can't be called.
        ValueError: the scheme is malformed, or one that this library reads itself.

    Examples:
        ```python
        shardwise.stores.register("mem", MemoryClient)
        data = sw.tar("mem://bucket/train-{000..099}.tar")
        ```
    """
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise ValueError(f"scheme={scheme!r:.60}: lower-case letters, digits, '+', '-' and '.'")
    if scheme in FAMILIES or scheme in ("file", "pipe"):
        raise ValueError(f"scheme={scheme!r}: shardwise has a client for it; choose another one")
    if not callable(factory):
        raise TypeError(f"factory={factory!r:.80}: a function of (root, options)")
    _FACTORIES[scheme] = factory


def registered() -> Mapping[str, ClientFactory]:
    """Return the factories of this process by scheme."""
    return dict(_FACTORIES)


def register_missing(factories: Mapping[str, Any]) -> None:
    """Register the factories of another process whose schemes are not known here."""
    for scheme, factory in factories.items():
        _FACTORIES.setdefault(scheme, factory)
