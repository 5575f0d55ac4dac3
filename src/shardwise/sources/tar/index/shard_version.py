"""Whether an index is of the shard that lies there now, and the messages where it is not."""

from __future__ import annotations

from shardwise.errors import DataError
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.storage import FileStat, described, is_local

__all__ = ["changed", "fits", "require_end", "unfinished"]


def fits(header: IndexHeader, url: str, stat: FileStat) -> bool:
    """Whether an index says that it was made from this version of its shard.

    By size and ETag; by size and time of change where one of them has no ETag; by size alone where
    a server tells neither. A copy has another time: see `IndexStore.load`.
    """
    if header.num_bytes != stat.num_bytes:
        return False
    if header.etag and stat.etag:
        return header.etag == stat.etag
    if not stat.etag and not stat.mtime_ns and not is_local(url):
        return True
    return header.mtime_ns == stat.mtime_ns


def changed(header: IndexHeader, stat: FileStat) -> str:
    """How the shard differs from the one that was indexed, for messages."""
    is_compared = header.num_bytes == stat.num_bytes and not (header.etag and stat.etag)
    return (
        f"the shard has changed since it was indexed: {described(header.stat)} then, "
        f"{described(stat)} now" + (", and its headers are others" if is_compared else "")
    )


def unfinished(num_samples: int) -> str:
    """The message for a shard that has no end."""
    return (
        "the shard has no end (two blocks of zeros): its writer was stopped, or it was cut between "
        f"two samples; get it again, or, if the {num_samples} samples that it holds are all there "
        "should be, take it as it is by accept_unfinished=True (--accept-unfinished)"
    )


def require_end(header: IndexHeader, url: str) -> None:
    """Raise DataError for the index of a shard that has no end."""
    if not header.has_end:
        raise DataError(unfinished(header.num_samples), url=url, offset=header.num_bytes)
