"""Whether a file is the version that its dataset was opened with; the errors where it is not.

Keeps I6: bytes of two versions of a file are never mixed, also where a dataset's index names no
versions. The Python standard library and the protocol only.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from shardwise.base.errors import DataError, StaleIndexError
from shardwise.storage.protocol import FileStat

CLOCKS_DIFFER_NS = 10 * 10**9


def require_same(opened: FileStat, current: FileStat, url: str) -> None:
    """Compare two stats of a file: by ETag, else by length and time; a time of 0 is not known."""
    if opened.etag and current.etag:
        is_same = opened.etag == current.etag
    else:
        is_same = opened.num_bytes == current.num_bytes
        if is_same and not opened.etag and not current.etag and opened.mtime_ns:
            is_same = current.mtime_ns in (opened.mtime_ns, 0)
    if not is_same:
        may_be_touched = opened.num_bytes == current.num_bytes and not (
            opened.etag and current.etag
        )
        raise StaleIndexError(
            f"the file was replaced while it was in use: it had {described(opened)}, and has "
            f"{described(current)}; open the dataset anew, and begin the epoch anew"
            + (", or go on from its state if the file was only touched" if may_be_touched else ""),
            url=url,
        )


def require_not_written_since(opened_ns: int, current: FileStat, url: str) -> None:
    """Refuse a file that was written after its dataset was opened.

    For datasets whose index has no times or ETags, so that nothing is known of a file before its
    first read. A time to come proves nothing: it is of another clock, or set by hand. Nor do the
    10 s after the opening, by which the clock of a file server may be ahead of this one.
    """
    if opened_ns + CLOCKS_DIFFER_NS < current.mtime_ns <= time.time_ns():
        raise StaleIndexError(
            f"the file was written {(current.mtime_ns - opened_ns) / 1e9:.1f} s after the dataset "
            "was opened, by its time of change: it may not be the one that the index is of; open "
            "the dataset anew, and begin the epoch anew",
            url=url,
        )


def ends_early(offset: int, length: int, end: int, url: str) -> DataError:
    """The error for a range of a file that ends at `end`."""
    return DataError(
        f"asked for {length} bytes, there are {max(0, end - offset)}: the file ended at byte {end} "
        f"of {offset + length}: truncated?",
        url=url,
        offset=offset,
    )


def described(stat: FileStat) -> str:
    """A version of a file, for messages: "1,024 bytes, changed 2026-05-04 09:08:07.5 UTC"."""
    size = f"{stat.num_bytes:,} bytes"
    if stat.etag:
        return f"{size}, ETag {stat.etag}"
    changed = datetime.fromtimestamp(stat.mtime_ns // 10**9, UTC)
    fraction = f".{stat.mtime_ns % 10**9:09d}".rstrip("0").rstrip(".")
    return f"{size}, changed {changed:%Y-%m-%d %H:%M:%S}{fraction} UTC"


def range_error(start: int, stop: int, num_bytes: int, url: str) -> DataError:
    """The error for bytes [start, stop) that a store did not send, of a file of `num_bytes`."""
    if stop <= num_bytes:
        return DataError(
            f"the server refuses bytes {start} to {stop} of a file that it says has "
            f"{num_bytes} bytes (HTTP 416)",
            url=url,
            offset=start,
        )
    return ends_early(start, stop - start, num_bytes, url)
