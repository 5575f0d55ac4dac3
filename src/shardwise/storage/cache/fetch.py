"""Blocks that a read lacks: claimed, fetched with all requests in flight, or waited for.

Keeps I6: what can't be cached is read directly, so a read ends whole or with an error. Nobody who
holds a claim waits for another's, so nobody waits in a ring, and a wait has an end. Imports this
package and the protocol; what reads remote files, at the first miss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.storage.cache.block_lock import Claim, Refusal
from shardwise.storage.cache.blocks import BlockInfo
from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.open_block import Outcome
from shardwise.storage.protocol import File
from shardwise.storage.requests.counts import IO_COUNTS
from shardwise.storage.requests.received import copy_pieces

__all__ = ["Missing", "Read", "Spans", "bring", "fetch", "read_direct"]

# Memory for what is being fetched by one call.
_ROUND_BYTES = 64 << 20
# How often a block that is said to be there may be gone when it is read.
_MOST_TRIES = 4
_LONGEST_WAIT_S = 0.01
Spans = list[tuple[int, int, int]]
# A file, and what its `read_spans` takes besides the buffer.
Read = tuple[File, Sequence[int], Sequence[int], int]


@dataclass
class Missing:
    """A block that a call needs, and what of it.

    Attributes:
        file: where it comes from.
        cache: where it belongs.
        info: what it is.
        name: its name in the cache.
        spans: offset in the block, beginning and end in the buffer, of each part.
        tries: how often it was said to be there and was not.
    """

    file: File
    cache: Cache
    info: BlockInfo
    name: str
    spans: Spans
    tries: int = 0


def bring(missing: list[Missing], view: memoryview) -> None:
    """Get blocks that were not there: from the store, or from who is fetching them."""
    cache = missing[0].cache
    todo, pause, hits, waited_s = missing, 1e-3, 0, 0.0
    while todo:
        left, is_idle = fetch(todo, view, is_late=waited_s > cache.settings.wait_s)
        if left and is_idle:
            begin = time.monotonic()
            cache.wait(pause)
            waited_s += time.monotonic() - begin
            pause = min(2 * pause, _LONGEST_WAIT_S)
        todo = []
        for one in left:
            if one.cache.read(one.name, one.spans, view) is Outcome.READ:
                hits += 1
            else:
                todo.append(one)
    if hits:
        cache.count_hits(hits)


def fetch(
    wanted: list[Missing], view: memoryview, *, is_late: bool = False
) -> tuple[list[Missing], bool]:
    """Fetch what can be claimed, and what the cache has no room for.

    Returns:
        What others have fetched, are fetching, or what the next call may fetch; and whether nothing
        was fetched here.
    """
    claims: list[tuple[Missing, Claim]] = []
    left: list[Missing] = []
    direct: list[Missing] = []
    num_bytes = 0
    try:
        for one in wanted:
            if num_bytes >= _ROUND_BYTES:
                left.append(one)
                continue
            found = one.cache.claim(one.name, one.info)
            if isinstance(found, Claim):
                claims.append((one, found))
                num_bytes += one.info.num_bytes
                continue
            one.tries += found is Refusal.THERE
            if found is Refusal.FULL or one.tries > _MOST_TRIES or is_late:
                direct.append(one)
            else:
                left.append(one)
        num_fetched = len(claims) + len(direct)
        if claims:
            _fetch_claimed(claims, num_bytes, view)
    except BaseException:
        for one, claim in claims:
            one.cache.abandon(claim)
        raise
    if direct:
        read_direct(_contiguous(direct), view)
    if num_fetched:
        IO_COUNTS.add(misses=num_fetched)
    return left, not num_fetched


def _fetch_claimed(claims: list[tuple[Missing, Claim]], num_bytes: int, view: memoryview) -> None:
    """Fetch blocks with all requests in flight, hand out what is wanted of them, publish them."""
    buffer = np.empty(num_bytes, np.uint8).data
    reads = []
    begin = 0
    for one, _ in claims:
        end = begin + one.info.num_bytes
        reads.append((one.file, [one.info.offset], [end], begin))
        begin = end
    read_direct(reads, buffer)
    while claims:
        one, claim = claims[-1]
        payload = buffer[begin - one.info.num_bytes : begin]
        begin -= one.info.num_bytes
        for offset, start, stop in one.spans:
            view[start:stop] = payload[offset : offset + stop - start]
        one.cache.publish(claim, payload)
        claims.pop()


def read_direct(reads: Iterable[Read], buffer: memoryview) -> None:
    """Read past the cache, with all requests to remote files in flight at once."""
    from shardwise.storage.remote import RemoteFile, read_remote

    remote = []
    for file, offsets, ends, begin in reads:
        if isinstance(file, RemoteFile):
            remote.append((file, list(offsets), list(ends), begin))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    copy_pieces(read_remote(remote), buffer)


def _contiguous(blocks: Iterable[Missing]) -> list[tuple[File, list[int], list[int], int]]:
    """The reads of the wanted parts of blocks, those that stand together in the buffer as one."""
    reads: list[tuple[File, list[int], list[int], int]] = []
    for one in blocks:
        for offset, begin, end in one.spans:
            place = one.info.offset + offset
            if reads and reads[-1][0] is one.file and reads[-1][2][-1] == begin:
                reads[-1][1].append(place)
                reads[-1][2].append(end)
            else:
                reads.append((one.file, [place], [end], begin))
    return reads
