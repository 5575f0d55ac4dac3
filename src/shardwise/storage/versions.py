"""The version of a file that a reader is bound to, and the errors for another one."""

from __future__ import annotations

from shardwise.errors import DataError, StaleIndexError
from shardwise.storage.protocol import FileStat

__all__ = ["check_version", "range_error"]


def check_version(pinned: FileStat, current: FileStat, url: str) -> None:
    """Compare a reply's version with the pinned one: by ETag, else by length and time.

    Raises:
        StaleIndexError: the file was replaced.
    """
    if pinned.etag and current.etag:
        is_same = pinned.etag == current.etag
    else:
        is_same = pinned.num_bytes == current.num_bytes
        if is_same and not pinned.etag and not current.etag and pinned.mtime_ns:
            is_same = current.mtime_ns in (pinned.mtime_ns, 0)
    if not is_same:
        raise StaleIndexError(
            "the file was replaced while it was in use: it was "
            f"{_described(pinned)}, it is {_described(current)}; index it anew, and begin the "
            "epoch anew",
            url=url,
        )


def range_error(start: int, stop: int, num_bytes: int, url: str) -> DataError:
    """The error for bytes [start, stop) that a store did not send, of a file of `num_bytes`."""
    if stop <= num_bytes:
        return DataError(
            f"the server refuses bytes {start} to {stop} of a file that it says has "
            f"{num_bytes} bytes (HTTP 416)",
            url=url,
            offset=start,
        )
    return DataError(
        f"asked for {stop - start} bytes, there are {max(0, num_bytes - start)}: the file "
        f"ended at byte {num_bytes} of {stop}: truncated?",
        url=url,
        offset=start,
    )


def _described(stat: FileStat) -> str:
    return f"{stat.num_bytes} bytes with the ETag {stat.etag or 'none'}"
