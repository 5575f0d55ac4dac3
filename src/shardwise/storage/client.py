"""The client of a store, which makes single attempts, and its replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from shardwise.storage.protocol import FileStat

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
