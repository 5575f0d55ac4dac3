"""Making indexes: one shard at a time, or many in parallel.

Each index is published whole when its shard is done, so a killed run leaves whole indexes only and
the next one continues from there. Digests are the CRC-32 of payloads, read from front to back.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import directory_text
from shardwise.base.errors import MissingShardError, ShardwiseError, StaleIndexError, StorageError
from shardwise.base.parallel import in_processes, in_threads, usable_cores
from shardwise.base.shown import base_name, shown
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_version import require_end
from shardwise.sources.tar.scan.byte_source import refuse_compressed
from shardwise.sources.tar.scan.elsewhere import Members
from shardwise.sources.tar.scan.members import scan_members, warn_of_lost
from shardwise.sources.tar.scan.samples import SampleTable
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import File, FileStat, StorageOptions, described, expand, is_local
from shardwise.storage.listing import INDEX

# Fills a buffer with the bytes from an offset on.
_ReadInto = Callable[[int, memoryview], None]
# Samples whose payloads are sorted by offset together.
_ROWS = 16384
_READ_BYTES = 4 << 20
# Concurrent reads of a remote shard.
_REMOTE_READS = 8


def payload_digests(
    file: File, index: ShardIndex, *, progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.uint32]]]:
    """Read all payloads of a shard; `progress` is called with the bytes read since its last call.

    Yields:
        `(field, rows, digests)`: for some rows of the index (int64 `[k]`, those that have the
        field), the CRC-32 of each payload (uint32 `[k]`). All of a field come in ascending order.
    """

    def read_into(offset: int, view: memoryview) -> None:
        if file.is_remote:
            ends = [*range(_READ_BYTES, len(view), _READ_BYTES), len(view)]
            file.read_spans(range(offset, offset + len(view), _READ_BYTES), ends, view, 0)
        else:
            file.read_into(offset, view)
        if progress is not None:
            progress(len(view))

    buffer = np.empty(_READ_BYTES * (_REMOTE_READS if file.is_remote else 1), np.uint8)
    for first in range(0, index.num_samples, _ROWS):
        rows = np.arange(first, min(first + _ROWS, index.num_samples), dtype=np.int64)
        offsets, sizes = index.locate_all(index.fields, rows)
        has_field = sizes >= 0
        starts, lengths = offsets[has_field], sizes[has_field]
        order = np.argsort(starts, kind="stable")
        found = np.empty(len(starts), np.uint32)
        found[order] = list(_walk(read_into, starts[order], lengths[order], buffer))
        digests = np.zeros(sizes.shape, np.uint32)
        digests[has_field] = found
        for field, mask, row_digests in zip(index.fields, has_field, digests, strict=True):
            yield field, rows[mask], row_digests[mask]


def _walk(
    read_into: _ReadInto, offsets: NDArray[np.int64], sizes: NDArray[np.int64], buffer: NDArray[Any]
) -> Iterator[int]:
    view = buffer.data
    ends = offsets + sizes
    # The buffer holds the bytes from `begin` to `end` of the file.
    begin = end = 0
    for row, (at, stop) in enumerate(zip(offsets.tolist(), ends.tolist(), strict=True)):
        digest = 0
        while at < stop:
            if not begin <= at < end:
                # As many of the next payloads as fit, or a part of this one.
                last = int(np.searchsorted(ends[row:], at + len(view), side="right")) + row - 1
                begin, end = at, int(ends[last]) if last >= row else at + len(view)
                read_into(begin, view[: end - begin])
            part = view[at - begin : min(stop, end) - begin]
            digest = zlib.crc32(part, digest)
            at += len(part)
        yield digest


# Below 1 GiB of shards, starting processes costs more than they save.
_PARALLEL_BYTES = 1 << 30
# Threads, not processes: indexing a remote shard waits for replies, and hardly computes.
_REMOTE_THREADS = 16
_DIED = (
    "an indexing process died; what is done is kept, so run it again. A script that calls this "
    "needs `if __name__ == '__main__':` around it, and jobs=1 works without processes"
)


@dataclass(frozen=True)
class BuildResult:
    """The result of indexing one shard."""

    url: str
    path: str
    status: str
    num_samples: int = 0
    error: Exception | None = None
    note: str = ""

    def __repr__(self) -> str:
        return f"BuildResult({shown(self.url)!r}, {self.status!r}, {self.num_samples} samples)"


def build_index(
    url: str,
    *,
    digests: bool = False,
    options: StorageOptions | None = None,
    accept_unfinished: bool = False,
    watch: Callable[[Iterable[Members], Counter[str]], Iterable[Members]] | None = None,
) -> ShardIndex:
    """Index a shard by its headers, writing nothing; `watch` sees and passes on the members."""
    refuse_compressed(url)
    file = open_uncached(url, options)
    before = file.stat()
    file.pin(before)
    scan = Scan(file, before.num_bytes, url=url)
    ignored: Counter[str] = Counter()
    table = SampleTable(url, ignored)
    chunks: Iterable[Members] = scan_members(scan, ignored)
    for members in chunks if watch is None else watch(chunks, ignored):
        table.add(members)
    index = index_of(table, before, has_end=scan.has_end)
    if scan.removed:
        offsets, _ = index.locate_all(index.fields, np.arange(index.num_samples))
        index = index.without(np.flatnonzero(np.isin(offsets, scan.removed).any(axis=0)).tolist())
    warn_of_lost(ignored, url)
    if not accept_unfinished:
        require_end(index.header, url)
    if digests:
        index = with_digests(index, file)
    after = file.stat()
    if after != before:
        raise StaleIndexError(
            f"the shard changed while it was indexed ({described(before)}, then "
            f"{described(after)}): wait until its writer is done",
            url=url,
        )
    return index


def index_for(url: str, store: IndexStore) -> ShardIndex:
    """Scan a shard with a store's options: how it is reached, and whether it may lack an end."""
    return build_index(url, options=store.options, accept_unfinished=store.accept_unfinished)


def index_of(table: SampleTable, stat: FileStat, *, has_end: bool) -> ShardIndex:
    """The index of a shard whose members are all in a table."""
    columns, optional = table.finish(has_end=has_end)
    header = IndexHeader(
        name=base_name(table.url),
        num_bytes=stat.num_bytes,
        mtime_ns=stat.mtime_ns,
        etag=stat.etag,
        num_samples=table.num_samples,
        fields=table.fields,
        optional=optional,
        key_length=table.key_length,
        has_end=has_end,
        ignored={what: count for what, count in table.ignored.items() if count},
    )
    return ShardIndex(header, columns)


def with_digests(index: ShardIndex, file: File) -> ShardIndex:
    """The index with a CRC-32 of every payload, for which the whole shard is read."""
    columns = {field: np.zeros(index.num_samples, np.uint32) for field in index.fields}
    for field, rows, digests in payload_digests(file, index):
        columns[field][rows] = digests
    return index.with_digests(columns)


def build_indexes(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    index: str | os.PathLike[str] | None = None,
    digests: bool = False,
    force: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int, str], object] | None = None,
    options: StorageOptions | None = None,
    accept_unfinished: bool = False,
) -> list[BuildResult]:
    """Bring the indexes of shards up to date, in parallel; fresh ones are left as they are.

    Each index is published when its shard is done: a run that is stopped or killed continues from
    there the next time. A shard that fails does not stop the others.

    Args:
        urls: shards, as `shardwise.tar` takes them.
        index: as of `shardwise.tar`; the result's `note` reports a store that takes no index.
        digests: whether to keep a CRC-32 of every payload; an index without is not fresh then.
        force: whether to make fresh ones again too.
        jobs: processes, or threads where shards are remote; 1 works in this one; None chooses.
        progress: called here as `progress(num_done, num_shards, url)` after each shard.
        options: how remote shards are reached; None for the defaults.
        accept_unfinished: whether shards without an end are taken; without it they fail.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one process; None chooses")
    shards = expand_shards(urls, options=options)
    directory = None if index is None else directory_text("index", index)
    store = IndexStore(directory, options, accept_unfinished)
    refresh = partial(_refresh, store=store, digests=digests, force=force)
    are_local = all(is_local(url) for url in shards)
    jobs = min(
        _choose_jobs(shards, store, are_local=are_local) if jobs is None else jobs, len(shards)
    )
    finished: Iterable[BuildResult] = map(refresh, shards)
    if jobs > 1 and are_local:
        finished = in_processes(refresh, shards, jobs, if_one_dies=_DIED, is_ordered=False)
    elif jobs > 1:
        finished = in_threads(refresh, shards, jobs, is_ordered=False)
    results: dict[str, BuildResult] = {}
    for result in finished:
        results[result.url] = result
        if progress is not None:
            progress(len(results), len(shards), result.url)
    return [results[url] for url in shards]


def _choose_jobs(shards: Sequence[str], store: IndexStore, *, are_local: bool) -> int:
    if not are_local:
        return _REMOTE_THREADS
    num_bytes = 0
    for url in shards:
        # A shard without a size does not justify processes; indexing it reports the error.
        with contextlib.suppress(ShardwiseError):
            num_bytes += store.stat(url).num_bytes
        if num_bytes >= _PARALLEL_BYTES:
            return usable_cores()
    return 1


def _refresh(url: str, *, store: IndexStore, digests: bool, force: bool) -> BuildResult:
    path = store.published_path(url)
    try:
        index = None if force else store.valid(url, store.stat(url))
        is_fresh = index is not None and (index.header.has_digests or not digests)
        if index is None or not is_fresh:
            index = build_index(
                url,
                digests=digests,
                options=store.options,
                accept_unfinished=store.accept_unfinished,
            )
        elif not store.accept_unfinished:
            require_end(index.header, url)
        path, note = store.publish(url, index)
    except ShardwiseError as error:
        return BuildResult(url, path, "failed", error=error)
    except OSError as error:
        reason = f"the index {shown(path)!r} can't be written: {error.strerror or error}"
        return BuildResult(url, path, "failed", error=StorageError(reason))
    status = "fresh" if is_fresh else "built"
    return BuildResult(url, path, status, index.num_samples, note=note)


def expand_shards(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The URLs of shards, as `shardwise.storage.url_patterns` gives them, by one listing each.

    A lost shard would silently make a shorter epoch: its index, if it is still there, is an error.
    """
    items = urls if isinstance(urls, Sequence) and not isinstance(urls, str) else [urls]
    if any(str(item).endswith(INDEX) for item in items):
        return expand(urls, options=options)
    found = expand(urls, suffixes=(".tar", f".tar{INDEX}"), options=options)
    shards = [url for url in found if not url.endswith(INDEX)]
    known = set(shards)
    indexed = [url.removesuffix(INDEX) for url in found if url.endswith(INDEX)]
    missing = [
        shard
        for shard in indexed
        if shard not in known and not (is_local(shard) and os.path.exists(shard))  # noqa: PTH110
    ]
    if missing:
        raise MissingShardError(
            f"{len(missing)} indexes lie there without their shards, the first is "
            f"{shown(missing[0]) + INDEX!r}: put the shards back, or, if they are not to be "
            "read any more, remove the index files or name the other shards one by one",
            url=missing[0],
        )
    return shards
