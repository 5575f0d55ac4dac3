"""Whether an index is of the shard that lies there now, and the messages where it is not.

A copy has another time than the original (`cp -r`, `git clone`, `tar x`, a container layer), and so
have a shard that was uploaded and one that was written again. The size, the headers of the first,
the middle and the last sample, and the bytes after the last one tell them apart. They do not show
other payloads or names between those samples, in a shard of the same layout.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from shardwise.base.errors import DataError
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    COUNT,
    checksums_hold,
    parse_number,
    read_name,
    round_up,
)
from shardwise.sources.tar.scan.members import scan_members
from shardwise.sources.tar.scan.names import split_names
from shardwise.sources.tar.scan.samples import SampleTable
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import File, FileStat, described, is_local


def fits(header: IndexHeader, url: str, stat: FileStat) -> bool:
    """Whether an index is of this version of its shard.

    By size, and by ETag or else time if there are any. A copy has another time: see
    `IndexStore.load`.
    """
    if header.num_bytes != stat.num_bytes:
        return False
    if header.etag and stat.etag:
        return header.etag == stat.etag
    if not stat.etag and not stat.mtime_ns and not is_local(url):
        return True
    return header.mtime_ns == stat.mtime_ns


def changed(header: IndexHeader, stat: FileStat) -> str:
    """Describe how the shard differs from the one that was indexed, for messages."""
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


# Longer names stand in their own header, larger sizes in a PAX record.
_MAX_PLAIN_NAME = 100
_MAX_PLAIN_SIZE = 0o77777777777


def has_headers_of(index: ShardIndex, file: File) -> bool:
    """Whether a file of the indexed size has the headers that its index expects.

    Reads one header for each field of three samples, and the block after the last payload. If they
    are others, reads all headers: a hard link has its payload after another member's header.
    """
    count = file.read(COUNT.start, COUNT.stop - COUNT.start) if index.num_bytes else b""
    if count.isdigit() and int(count) > len(index.header.removed):
        return False
    return _has_some_headers_of(index, file) or _has_all_headers_of(index, file)


def _has_all_headers_of(index: ShardIndex, file: File) -> bool:
    table = SampleTable(file.url, Counter())
    scan = Scan(file, index.num_bytes, url=file.url)
    try:
        for members in scan_members(scan, table.ignored):
            table.add(members)
        columns, _ = table.finish(has_end=scan.has_end)
    except DataError:
        return False
    return table.fields == index.fields and index.has_columns(columns)


def _has_some_headers_of(index: ShardIndex, file: File) -> bool:
    rows = np.unique([0, index.num_samples // 2, index.num_samples - 1])
    rows = rows[: index.num_samples].astype(np.int64)
    members: dict[int, tuple[int, str]] = {}
    for field in index.fields:
        for row, offset, size in zip(rows, *index.locate(field, rows), strict=True):
            if size >= 0:
                members[int(offset)] = int(size), f"{index.keys[row]}.{field}"
    offsets = sorted(members)
    blocks = np.empty((len(offsets), BLOCK), np.uint8)
    starts = [offset - BLOCK for offset in offsets]
    ends = range(BLOCK, blocks.size + BLOCK, BLOCK)
    if not starts:
        return not _has_samples(file, 0, index)
    if starts[0] < 0 or offsets[-1] > index.num_bytes:
        return False
    file.read_spans(starts, ends, blocks.reshape(-1).data, 0)
    if not checksums_hold(blocks).all():
        return False
    for block, offset in zip(blocks, offsets, strict=True):
        if not _states(block.tobytes(), *members[offset]):
            return False
    return not _has_samples(file, offsets[-1] + round_up(members[offsets[-1]][0]), index)


def _states(block: bytes, size: int, name: str) -> bool:
    """Whether a header is of a member of this size and name, as far as one header holds these."""
    if size <= _MAX_PLAIN_SIZE and parse_number(block[124:136]) != size:
        return False
    is_plain = name.isascii() and len(name) < _MAX_PLAIN_NAME
    return not is_plain or read_name(block).decode("utf-8", "replace").lower() == name.lower()


def _has_samples(file: File, start: int, index: ShardIndex) -> bool:
    """Whether there is anything but the shard's end, and members that are left out, from here."""
    if index.num_bytes - start < BLOCK or not any(file.read(start, BLOCK)):
        return False
    scan = Scan(file, index.num_bytes, url=file.url, start=start)
    ignored: Counter[str] = Counter()
    try:
        return any(
            len(split_names(members.names, members.lengths, ignored)[0])
            for members in scan_members(scan, ignored)
        )
    except DataError:
        return True
