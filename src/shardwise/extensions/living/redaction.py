"""Samples that must go: their payloads become zeros, and the index says that they were removed.

The index says so first: whoever opens the shard from then on does not read them. The zeros come in
a new file under the shard's name, so a run that is killed leaves all of a payload or none, and the
same run again ends it. One run at a time may change a shard.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from shardwise.base.errors import DataError, StorageError
from shardwise.base.shown import shown
from shardwise.sources.tar.check.problems import Problem
from shardwise.sources.tar.index.build import index_for, with_digests
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import atomic_write, is_local, local_path, read_whole
from shardwise.storage.atomic import sweep
from shardwise.storage.write import upload


def redact(shards: Sequence[str], keys: Collection[str], store: IndexStore) -> dict[str, int]:
    """Remove the samples of some keys; return how many each shard lost.

    Raises:
        ValueError: no shard has one of the keys; nothing was removed.
        DataError: a payload is that of another sample, too.
        StorageError: an index or a shard can't be written.
    """
    wanted, missing, found = set(keys), set(keys), dict[str, tuple[ShardIndex, ShardIndex]]()
    for url in shards:
        before = store.valid(url, store.stat(url)) or index_for(url, store)
        rows = [row for row, key in enumerate(before.keys) if key in wanted]
        if rows:
            found[url] = before, before.without(rows)
            missing.difference_update(map(before.keys.one, rows))
    if missing:
        raise ValueError(
            f"no shard has {len(missing)} of {len(wanted)} keys, such as {min(missing)!r}: is it "
            "the list of another dataset? Nothing was removed"
        )
    for url, (_, index) in found.items():
        _refuse_shared(url, index)
    for url, (_, index) in found.items():
        _redact(url, index, store)
    return {
        url: len(index.header.removed) - len(before.header.removed)
        for url, (before, index) in found.items()
    }


def find_left(url: str, index: ShardIndex, store: IndexStore) -> Iterator[Problem]:
    """Yield the payloads of removed samples that are not zeros."""
    file = open_uncached(url, store.options)
    for row, field, offset, size in _payloads(index):
        if file.read(offset, size).count(0) != size:
            what = "the sample was removed, and its payload is not zeros"
            hint = "run `shardwise redact` with its key again"
            yield Problem(url, what, hint, index.keys[row], field, offset)


def _payloads(index: ShardIndex) -> Iterator[tuple[int, str, int, int]]:
    """Yield row, field, offset and size of the payloads of removed samples."""
    rows = np.array(index.header.removed, np.int64)
    for field in index.fields:
        places = zip(rows, *index.locate(field, rows), strict=True)
        yield from ((int(r), field, int(at), int(size)) for r, at, size in places if size > 0)


def _refuse_shared(url: str, index: ShardIndex) -> None:
    offsets, sizes = index.locate_all(index.fields, np.arange(index.num_samples))
    stays = np.delete(np.where(sizes > 0, offsets, -1), index.header.removed, axis=1)
    for row, field, offset, _ in _payloads(index):
        if offset in stays:
            reason = "by a hard link another sample has this payload, too: remove both"
            raise DataError(reason, url=url, key=index.keys[row], field=field, offset=offset)


def _redact(url: str, index: ShardIndex, store: IndexStore) -> None:
    _publish(url, index, store)
    if any(True for _ in find_left(url, index, store)):
        spans = [(offset, size) for _, _, offset, size in _payloads(index)]
        if is_local(url):
            _zero_file(os.path.realpath(local_path(url)), spans)
        else:
            _zero_object(url, index.header.etag, spans, store)
    stat = store.stat(url)
    index = index.of_version(stat.mtime_ns, stat.etag)
    if index.header.has_digests:
        index = with_digests(index, open_uncached(url, store.options))
    _publish(url, index, store)


def _publish(url: str, index: ShardIndex, store: IndexStore) -> None:
    if note := store.publish(url, index)[1]:
        raise StorageError(f"samples of {shown(url)!r} can't be removed: {note}")


def _zero_file(path: str, spans: Sequence[tuple[int, int]]) -> None:
    sweep(Path(path).parent)  # copies that killed runs left
    if (names := Path(path).stat().st_nlink) > 1:
        raise StorageError(f"{path!r} has {names} names (hard links): remove the others first")
    try:
        with atomic_write(path) as file, Path(path).open("rb") as old:
            shutil.copyfileobj(old, file)
            for offset, size in spans:
                file.seek(offset)
                file.write(bytes(size))
            shutil.copymode(path, file.name)
    except OSError as error:
        raise StorageError(f"{path!r} can't be written: {error.strerror or error}") from error


def _zero_object(url: str, etag: str, spans: Sequence[tuple[int, int]], store: IndexStore) -> None:
    if not etag:
        raise StorageError(f"{shown(url)!r} has no ETag: another version could be overwritten")
    data = bytearray(read_whole(url, options=store.options))
    for offset, size in spans:
        data[offset : offset + size] = bytes(size)
    upload(url, bytes(data), options=store.options, etag=etag)
