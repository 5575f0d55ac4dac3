"""Blocks read ahead: the right bytes, in bounded memory, and none for reads here and there."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import pairwise

import pytest

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.prefetch.readahead import BLOCK_BYTES, ReadAhead
from shardwise.extensions.remote.prefetch.sequential import Readable
from shardwise.extensions.remote.requests.ranges import copy_received
from shardwise.storage.client import Reply
from shardwise.storage.protocol import ByteRange, FileStat
from tests.support.event_loops import in_event_loop

SIZE = (160 << 20) + 12_345


class Source:
    """A file whose byte i is known, that counts what is asked of it, and comes in pieces."""

    def __init__(self, *, fails_at=None, turns=None):
        self.asked = []
        self.fails_at = fails_at
        self.turns = turns
        self.num_cancelled = 0

    async def fetch(self, start, stop, take):
        self.asked.append((start, stop))
        try:
            while start < stop:
                if self.turns is None:
                    length = 2 << 20
                    await asyncio.sleep(0.0005)
                else:
                    length = self.turns.choice([1, 1000, 1 << 20, 5 << 20, 20 << 20])
                    for _ in range(self.turns.choice([1, 2, 3, 30])):
                        await asyncio.sleep(0)
                end = min(stop, start + length)
                if self.fails_at is not None and start <= self.fails_at < end:
                    raise OSError("away")
                take(Reply(memoryview(content(start, end)), FileStat(SIZE, 0), 0.001))
                start = end
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    def asked_bytes(self):
        return sum(stop - start for start, stop in self.asked)

    def asks_nothing_twice(self):
        ranges = sorted(self.asked)
        return all(a[1] <= b[0] for a, b in pairwise(ranges))


PATTERN = random.Random(0).randbytes(997)


def content(start, stop):
    first = start % 997
    repeated = PATTERN * ((stop - start) // 997 + 2)
    return repeated[first : first + stop - start]


async def read(ahead, source, start, stop, *, name="f", then=lambda: None, size=SIZE):
    """Read a range as a file does; the bytes, and what was read directly."""
    buffer = bytearray(stop - start)
    pieces, rest = await ahead.read(
        Readable(name, size, source.fetch, then), [ByteRange(start, stop, 0)]
    )
    copy_received(pieces, memoryview(buffer))
    for span in rest:
        buffer[span.begin : span.begin + span.stop - span.start] = content(span.start, span.stop)
    assert bytes(buffer) == content(start, stop)
    return rest


@in_event_loop
async def test_reading_in_sequence_asks_for_each_byte_once_by_few_requests():
    ahead, source = ReadAhead(256 << 20, 8), Source()
    direct = 0
    step = 1 << 20
    for start in range(0, SIZE, step):
        rest = await read(ahead, source, start, min(start + step, SIZE))
        direct += sum(span.stop - span.start for span in rest)
    assert source.asks_nothing_twice()
    assert source.asked_bytes() + direct == SIZE
    # The first reads show that it is a sequence, and a long one.
    assert direct <= BLOCK_BYTES + step
    # They double in length.
    assert len(source.asked) <= 12
    assert ahead._memory.num_bytes == 0


@pytest.mark.parametrize("seed", range(6))
@in_event_loop
async def test_in_whatever_pieces_it_comes_it_is_right_and_asked_for_once(seed):
    turns = random.Random(seed)
    ahead, source = ReadAhead(256 << 20, 64), Source(turns=turns)
    start = 0
    while start < SIZE:
        stop = min(SIZE, start + turns.choice([300_000, 1 << 20, 7 << 20]))
        await read(ahead, source, start, stop)
        start = stop
    assert source.asks_nothing_twice()
    assert ahead._memory.num_bytes == 0


@in_event_loop
async def test_a_block_is_there_before_the_request_that_brings_it_is_over():
    ahead, source = ReadAhead(256 << 20, 8), Source()
    gate = asyncio.Event()

    async def fetch(start, stop, take):
        source.asked.append((start, stop))
        middle = (start // BLOCK_BYTES + 1) * BLOCK_BYTES
        take(Reply(memoryview(content(start, middle)), FileStat(SIZE, 0), 0.001))
        await gate.wait()
        take(Reply(memoryview(content(middle, stop)), FileStat(SIZE, 0), 0.001))

    source.fetch = fetch
    step = BLOCK_BYTES
    await read(ahead, source, 0, step)
    await asyncio.sleep(0)
    assert source.asked == [(step, 3 * step)]
    await asyncio.wait_for(read(ahead, source, step, 2 * step), 5)
    gate.set()
    await read(ahead, source, 2 * step, 3 * step)


@in_event_loop
async def test_memory_stays_below_its_bound_whatever_is_read():
    limit = 5 * BLOCK_BYTES
    ahead, source = ReadAhead(limit, 64), Source()

    async def stream(name):
        for start in range(0, SIZE, 1 << 20):
            await read(ahead, source, start, min(start + (1 << 20), SIZE), name=name)
            assert ahead._memory.num_bytes <= limit

    await asyncio.gather(*(stream(f"f{i}") for i in range(4)))


@in_event_loop
async def test_reads_here_and_there_start_no_block():
    ahead, source = ReadAhead(256 << 20, 64), Source()
    rng = random.Random(3)
    for _ in range(300):
        start = rng.randrange(SIZE - 60_000)
        rest = await read(ahead, source, start, start + 60_000)
        assert sum(span.stop - span.start for span in rest) == 60_000
    assert source.asked == []


@in_event_loop
async def test_two_readers_share_the_blocks():
    ahead, source = ReadAhead(256 << 20, 64), Source()
    for start in range(0, 8 << 20, 1 << 20):
        await read(ahead, source, start, start + (1 << 20))
    at = 2 * BLOCK_BYTES
    await asyncio.gather(*(read(ahead, source, at, at + (1 << 20)) for _ in range(5)))
    assert source.asks_nothing_twice()


@in_event_loop
async def test_what_fails_is_told_to_who_waits_and_asked_for_anew_later():
    ahead, source = ReadAhead(256 << 20, 64), Source(fails_at=30 << 20)
    step = 1 << 20
    with pytest.raises(OSError, match="away"):
        for start in range(0, SIZE, step):
            await read(ahead, source, start, start + step)
    # What came before it, of the same request, was not lost.
    assert start == 28 << 20
    source.fails_at = None
    while start < SIZE:
        await read(ahead, source, start, min(start + step, SIZE))
        start += step
    assert ahead._memory.num_bytes == 0


@in_event_loop
async def test_a_reply_that_is_shorter_than_it_says_is_an_error():
    ahead, source = ReadAhead(256 << 20, 64), Source()

    async def fetch(start, stop, take):
        take(Reply(memoryview(content(start, stop - 1)), FileStat(SIZE, 0), 0.001))

    source.fetch = fetch
    step = 1 << 20
    with pytest.raises(StorageError, match="1 bytes of"):
        for start in range(0, SIZE, step):
            await read(ahead, source, start, start + step)


@pytest.mark.parametrize("limit", [1, 5 << 20, 8 << 20, 16 << 20, 33 << 20])
@in_event_loop
async def test_with_little_memory_it_reads_on(limit):
    ahead, source = ReadAhead(limit, 1), Source()
    direct = 0
    for start in range(0, SIZE, 1 << 20):
        rest = await read(ahead, source, start, min(SIZE, start + (1 << 20)))
        direct += sum(span.stop - span.start for span in rest)
        assert ahead._memory.num_bytes <= limit
    assert source.asks_nothing_twice()
    assert direct <= 2 * BLOCK_BYTES or limit < 8 << 20


@in_event_loop
async def test_what_is_ahead_grows_with_what_was_read():
    ahead, source = ReadAhead(1 << 30, 64), Source()
    payload = 0
    step = 512 << 10
    for start in range(0, 40 << 20, step):
        await read(ahead, source, start, start + step)
        payload += step
        assert source.asked_bytes() <= 3 * payload + BLOCK_BYTES


@in_event_loop
async def test_blocks_that_were_left_out_make_room():
    ahead, source = ReadAhead(64 << 20, 64), Source()
    direct = 0
    step = BLOCK_BYTES
    # Three of four blocks are read; the fourth ones stay behind.
    for number in range(SIZE // step):
        if number % 4 != 3:
            rest = await read(ahead, source, number * step, (number + 1) * step)
            direct += sum(span.stop - span.start for span in rest)
    assert direct <= 2 * step
    assert ahead._memory.num_bytes <= 64 << 20


@in_event_loop
async def test_a_file_that_is_closed_holds_no_memory():
    ahead, source = ReadAhead(256 << 20, 64), Source()
    for start in range(0, 8 << 20, 1 << 20):
        await read(ahead, source, start, start + (1 << 20))
    assert ahead._memory.num_bytes > 0
    ahead.forget("f")
    assert ahead._memory.num_bytes == 0
    while not source.num_cancelled:
        await asyncio.sleep(0)


def in_turn(*names, size=SIZE):
    """Files that are expected to be read one after the other; each comes from a source."""
    sources = {name: Source() for name in names}

    def next_file(name):
        at = names.index(name) + 1
        if at == len(names):
            return None
        then = names[at]
        return Readable(then, size, sources[then].fetch, lambda: next_file(then))

    return sources, next_file


async def read_all(ahead, sources, name, next_file, size=SIZE):
    step = 1 << 20
    for start in range(0, size, step):
        end = min(start + step, size)
        then = partial(next_file, name)
        await read(ahead, sources[name], start, end, name=name, then=then, size=size)
    # A request that the last bytes make room for begins, and asks, in the next turns of the loop.
    for _ in range(20):
        await asyncio.sleep(0)


@in_event_loop
async def test_a_file_that_is_closed_while_a_block_is_waited_for_leaves_no_request():
    ahead, source = ReadAhead(64 << 20, 8), Source()
    fetch, is_silent, answering = source.fetch, False, set()

    async def fetch_or_wait_for_ever(start, stop, take):
        if is_silent:
            await asyncio.Event().wait()
        answering.add(start)
        await fetch(start, stop, take)
        answering.remove(start)

    source.fetch = fetch_or_wait_for_ever
    for start in range(0, 24 << 20, 4 << 20):
        await read(ahead, source, start, start + (4 << 20))
    is_silent = True

    async def read_on():
        for start in range(24 << 20, 160 << 20, 4 << 20):
            await read(ahead, source, start, start + (4 << 20))

    reader = asyncio.ensure_future(read_on())
    blocks = ahead._memory._blocks
    while answering or not any(each.num_readers and not each.is_done for each in blocks.values()):
        await asyncio.sleep(0)
    num_requests = len([task for task in asyncio.all_tasks() if task is not reader])
    # The reader is given up, but has had no turn yet, when the file is closed.
    reader.cancel()
    ahead.forget("f")
    with pytest.raises(asyncio.CancelledError):
        await reader
    for _ in range(10):
        await asyncio.sleep(0)
    assert num_requests > 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_event_loop
async def test_the_file_that_comes_next_is_on_its_way_before_this_one_ends():
    ahead = ReadAhead(256 << 20, 8)
    sources, next_file = in_turn("a", "b", "c")
    for _ in range(2):
        await read_all(ahead, sources, "a", next_file)
        assert sources["b"].asked
        await read_all(ahead, sources, "b", next_file)
        assert sources["c"].asked
        await read_all(ahead, sources, "c", next_file)
        for name in "bc":
            assert sources[name].asks_nothing_twice()
            assert sources[name].asked_bytes() == SIZE
            sources[name].asked.clear()
    assert ahead._memory.num_bytes == 0


# Of short files, what is read ahead covers several from the start.
@pytest.mark.parametrize("size", [SIZE, 16 << 20])
@in_event_loop
async def test_files_that_are_not_read_as_expected_are_soon_left_alone(size):
    ahead = ReadAhead(256 << 20, 8)
    names = [f"{i}" for i in range(12)]
    sources, next_file = in_turn(*names, size=size)
    for name in names[::2]:
        await read_all(ahead, sources, name, next_file, size=size)
    asked = [bool(sources[name].asked) for name in names[1::2]]
    assert asked[0]
    assert not any(asked[3 if size == SIZE else 4 :])
    # One block of each file that was read: its first bytes were read past it.
    assert ahead._memory.num_bytes <= 6 * BLOCK_BYTES


@in_event_loop
async def test_a_file_that_another_thread_reads_a_little_later_is_not_fetched_again():
    size = 16 << 20
    ahead = ReadAhead(256 << 20, 8)
    names = ["a", "b", "c", "d"]
    sources, next_file = in_turn(*names, size=size)
    await read_all(ahead, sources, "a", next_file, size=size)
    then, middle = partial(next_file, "c"), 1 << 20
    await read(ahead, sources["c"], 0, middle, name="c", then=then, size=size)
    await read_all(ahead, sources, "b", next_file, size=size)
    await read(ahead, sources["c"], middle, size, name="c", then=then, size=size)
    await read_all(ahead, sources, "d", next_file, size=size)
    assert sources["b"].asked
    assert sources["b"].asks_nothing_twice()
