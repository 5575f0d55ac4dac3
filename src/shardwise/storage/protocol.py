"""The file as the rest of the library sees it: exact byte ranges of one version.

Keeps I6: a range is read whole, or an error gives the reason; and the bytes of two versions of a
file are never mixed where the store has ETags, or times of change as local files have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from shardwise.storage.byte_ranges import ByteRange, byte_ranges


class ReadRequest(NamedTuple):
    """Ranges of one file that a reader waits for.

    Attributes:
        file: of the class whose `read_many` is called.
        ranges: none of them empty.
    """

    file: Any
    ranges: Sequence[ByteRange]


class FileStat(NamedTuple):
    """The length, time and ETag of one version of a file.

    Attributes:
        num_bytes: the file's length.
        mtime_ns: its modification time, in nanoseconds; 0 where a store does not say.
        etag: the store's name of this version, weak or strong, with its quotes; "" for local files
            and for stores without ETags.
    """

    num_bytes: int
    mtime_ns: int
    etag: str = ""


@runtime_checkable
class File(Protocol):
    """A file that is read by byte ranges, by any thread.

    It pickles without connections and descriptors. After a fork it works, or raises at once
    with what to do. All methods raise:

    - MissingShardError: nothing is there under the name;
    - StorageError: no access, no answer within the budget, any other failure of a store;
    - DataError: the file ends before the range does;
    - StaleIndexError: it is not the version that was pinned, or seen first.
    """

    url: str
    """The full name, as errors and manifests give it. It holds no credentials."""

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request to another machine."""

    def open(self) -> None:
        """Find out now, rather than at the first read, whether the file can be read."""

    def stat(self, since: int = 0) -> FileStat:
        """The version that is there now; or that a cache noted for a list read at `since`."""

    def pin(self, stat: FileStat) -> None:
        """Allow this version only: reads of another one raise StaleIndexError from now on.

        A local file is held to the length and the time; a remote one ignores a stat without an
        ETag, and is pinned by its first `stat` or reply.
        """

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a writable contiguous buffer with the bytes at `offset`."""

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Fill a buffer from `begin` on with several ranges of the file, one after the other.

        Range i starts at `offsets[i]` in the file and ends at `ends[i]` in the buffer; it starts
        where the one before ends.
        """

    def close(self) -> None:
        """Release descriptors; the next read opens the file again."""


class RemoteReads(ABC):
    """A file whose `read_many` does all the reading; see `File` for what its methods raise."""

    __slots__ = ()
    # The cache that it is read through, which learns of the reads of a pass before they are made.
    cache: Any = None

    @staticmethod
    @abstractmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        """Fill a buffer with ranges of several files of this class.

        All requests to stores are in flight at once; the first failure cancels the others.
        """

    def announce(self, owner: Hashable, requests: Sequence[ReadRequest]) -> bool:
        """Fetch ranges of files of this class, in order, before they are read.

        They are kept until the owner withdraws them. Of a file of unknown version only `WHOLE` is.

        Returns:
            Whether some of them have to be fetched.
        """
        del owner, requests  # files that keep nothing read on request
        return True

    def withdraw(self, owner: Hashable) -> None:
        """Drop what an owner announced."""
        del owner

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`."""
        buffer = bytearray(max(0, length))
        self.read_spans([offset], [length], memoryview(buffer), 0)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a writable contiguous buffer with the bytes at `offset`."""
        view = memoryview(buffer).cast("B")
        self.read_spans([offset], [len(view)], view, 0)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Fill a buffer with several ranges; all requests for them are in flight at once."""
        self.read_many([ReadRequest(self, byte_ranges(offsets, ends, begin))], buffer)
