"""Samples that must go: their payloads become zeros, and the index marks them as removed.

The index changes first: whoever opens the shard from then on does not read them. The zeros come in
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
from shardwise.sources.tar.index.build import index_for, with_digests
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.problems import Problem
from shardwise.sources.tar.scan.headers import BLOCK, CHECKSUM, COUNT, MARK, REMOVED
from shardwise.storage import File, atomic_write, is_local, local_path, read_whole
from shardwise.storage.write import sweep, upload


def redact(shards: Sequence[str], keys: Collection[str], store: IndexStore) -> dict[str, int]:
    """Remove the samples of some keys; return how many each shard lost.

    A ValueError of unknown keys and a DataError of shared payloads come before any change.
    """
    wanted, missing, found = {*keys}, {*keys}, dict[str, tuple[ShardIndex, ShardIndex]]()
    for url in shards:
        before = store.valid(url, store.stat(url)) or index_for(url, store)
        rows = [row for row, key in enumerate(before.keys) if key in wanted]
        if rows:
            found[url] = before, before.without(rows)
            _refuse_shared(url, found[url][1])
            missing.difference_update(map(before.keys.one, rows))
    if missing:
        raise ValueError(
            f"no shard has {len(missing)} of {len(wanted)} keys, such as {min(missing)!r}: is it "
            "the list of another dataset? Nothing was removed"
        )
    for url, (_, index) in found.items():
        _redact(url, index, store)
    return {u: len(b.header.removed) - len(a.header.removed) for u, (a, b) in found.items()}


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
        yield from ((int(r), field, int(at), int(size)) for r, at, size in places if size >= 0)


def _edits(file: File, index: ShardIndex) -> Iterator[tuple[int, bytes]]:
    """Yield the new bytes and their offsets: headers that mark removed samples, and zeros."""
    heads = {offset - BLOCK for _, _, offset, _ in _payloads(index)}
    for at in {0, *heads}:
        block = bytearray(file.read(at, BLOCK))
        if at in heads:
            block[MARK] = REMOVED
        if at == 0:
            block[COUNT] = b"%010d" % len(index.header.removed)
        block[CHECKSUM] = b" " * 8
        block[CHECKSUM] = b"%06o\0 " % sum(block)
        yield at, bytes(block)
    yield from ((offset, bytes(size)) for _, _, offset, size in _payloads(index))


def _refuse_shared(url: str, index: ShardIndex) -> None:
    offsets, sizes = index.locate_all(index.fields, np.arange(index.num_samples))
    stays = np.delete(np.where(sizes > 0, offsets, -1), index.header.removed, axis=1)
    for row, field, offset, _ in _payloads(index):
        if offset in stays:
            reason = "by a hard link another sample has this payload, too: remove both"
            raise DataError(reason, url=url, key=index.keys[row], field=field, offset=offset)


def _redact(url: str, index: ShardIndex, store: IndexStore) -> None:
    _publish(url, index, store)
    file = open_uncached(url, store.options)
    edits = [*_edits(file, index)]
    if any(file.read(at, len(data)) != data for at, data in edits):
        if is_local(url):
            _edit_file(os.path.realpath(local_path(url)), edits)
        else:
            _edit_object(url, index.header.etag, edits, store)
    stat = store.stat(url)
    index = index.of_version(stat.mtime_ns, stat.etag)
    if index.header.has_digests:
        index = with_digests(index, open_uncached(url, store.options))
    _publish(url, index, store)


def _publish(url: str, index: ShardIndex, store: IndexStore) -> None:
    if note := store.publish(url, index)[1]:
        raise StorageError(f"samples of {shown(url)!r} can't be removed: {note}")


def _edit_file(path: str, edits: Sequence[tuple[int, bytes]]) -> None:
    sweep(Path(path).parent)  # copies that killed runs left
    if (names := Path(path).stat().st_nlink) > 1:
        raise StorageError(f"{path!r} has {names} names (hard links): remove the others first")
    try:
        with atomic_write(path) as file, Path(path).open("rb") as old:
            shutil.copyfileobj(old, file)
            for at, data in edits:
                file.seek(at)
                file.write(data)
            shutil.copymode(path, file.name)
    except OSError as error:
        raise StorageError(f"{path!r} can't be written: {error.strerror or error}") from error


def _edit_object(
    url: str, etag: str, edits: Sequence[tuple[int, bytes]], store: IndexStore
) -> None:
    if not etag:
        raise StorageError(f"{shown(url)!r} has no ETag: another version could be overwritten")
    data = bytearray(read_whole(url, options=store.options))
    for at, part in edits:
        data[at : at + len(part)] = part
    upload(url, bytes(data), options=store.options, etag=etag)
