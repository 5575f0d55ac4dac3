"""The protocol of a store's client, which makes single attempts, and its replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from shardwise.storage.protocol import FileStat

# A client without streams is asked for pieces of 8 MiB at least.
_MIN_PIECE_BYTES = 8 << 20


class ObjectRange(NamedTuple):
    """Bytes [start, stop) of an object."""

    key: str
    start: int
    stop: int


class Reply(NamedTuple):
    """Bytes of an object, and the object's version.

    Attributes:
        data: any object with the buffer protocol.
        stat: of the whole object.
        head_s: seconds to the first byte.
    """

    data: memoryview
    stat: FileStat
    head_s: float


class Client(Protocol):
    """A client of one store: raises AttemptError, never retries."""

    moves_objects: bool
    """Whether an object may be missing for seconds because the store moves it between servers."""

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        """Bytes [start, stop) of an object: all of them, or fewer where it ends before.

        With an `etag`, of that version only.
        """
        ...

    def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """The same as the bytes arrive, in pieces of about `piece_bytes`."""
        ...

    async def head(self, key: str) -> FileStat:
        """The version under a key."""
        ...

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """The keys that begin with a prefix; with a delimiter, those of one directory only.

        Directories end in a slash.
        """
        ...

    async def put(self, key: str, source: bytes | Path) -> None:
        """Store an object whole; the one before is replaced at the end."""
        ...

    async def remove(self, key: str) -> None:
        """Remove an object."""
        ...


@runtime_checkable
class BatchClient(Protocol):
    """A client that reads ranges of many objects by one request, where `has_many` holds."""

    has_many: bool

    async def get_many(self, ranges: Sequence[ObjectRange]) -> list[memoryview | None]:
        """The bytes of each range; None for each that is not in the reply."""
        ...


class StreamsByGet:
    """`Client.stream` of a client that can't stream: each piece is a request."""

    async def stream(
        self: Client, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """See `Client.stream`."""
        piece_bytes = max(_MIN_PIECE_BYTES, piece_bytes)
        while start < stop:
            reply = await self.get(key, start, min(stop, start + piece_bytes), etag)
            if not reply.data:
                return
            yield reply
            start += len(reply.data)
