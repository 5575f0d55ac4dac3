"""Blocks read ahead: the right bytes, in bounded memory, and none for reads here and there."""

from __future__ import annotations

import asyncio
import random

import pytest

from shardwise.storage.attempts import Reply
from shardwise.storage.protocol import FileStat
from shardwise.storage.readahead import BLOCK_BYTES, Readable, ReadAhead
from shardwise.storage.spans import Span

SIZE = 10 * BLOCK_BYTES + 12_345


class Source:
    """A file whose byte i is known, that counts what is asked of it."""

    def __init__(self, *, fails=False, turns=None):
        self.asked = []
        self.fails = fails
        self.turns = turns

    async def fetch(self, start, stop):
        self.asked.append((start, stop))
        if self.turns is None:
            await asyncio.sleep(0.002)
        else:
            for _ in range(self.turns.choice([1, 2, 3, 30])):
                await asyncio.sleep(0)
        if self.fails:
            raise OSError("away")
        return Reply(memoryview(content(start, stop)), FileStat(SIZE, 0), 0.001)


PATTERN = random.Random(0).randbytes(997)


def content(start, stop):
    first = start % 997
    repeated = PATTERN * ((stop - start) // 997 + 2)
    return repeated[first : first + stop - start]


async def read(ahead, source, start, stop, *, name="f", then=lambda: None):
    """Read a range as a file does; the bytes, and what was read directly."""
    buffer = bytearray(stop - start)
    rest = await ahead.read(
        Readable(name, SIZE, source.fetch, then), [Span(start, stop, 0)], memoryview(buffer)
    )
    for span in rest:
        buffer[span.begin : span.begin + span.stop - span.start] = content(span.start, span.stop)
    assert bytes(buffer) == content(start, stop)
    return rest


def test_reading_in_sequence_fetches_each_block_once_and_ahead():
    async def work():
        ahead, source = ReadAhead(16 * BLOCK_BYTES, 8), Source()
        direct = 0
        step = 1 << 20
        for start in range(0, SIZE, step):
            rest = await read(ahead, source, start, min(start + step, SIZE))
            direct += sum(span.stop - span.start for span in rest)
        assert len(source.asked) == len(set(source.asked))
        # The first reads show that it is a sequence, and a long one.
        assert direct <= BLOCK_BYTES // 3 + step
        assert sum(stop - start for start, stop in source.asked) + direct <= SIZE + 2 * BLOCK_BYTES
        assert ahead.num_bytes <= BLOCK_BYTES

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(20))
def test_in_whatever_order_blocks_come_each_is_asked_for_once(seed):
    async def work():
        ahead, source = ReadAhead(64 * BLOCK_BYTES, 64), Source(turns=random.Random(seed))
        for start in range(0, SIZE, 1 << 20):
            await read(ahead, source, start, min(start + (1 << 20), SIZE))
        # What was begun at the end comes in.
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(source.asked) == len(set(source.asked)) == 11
        assert ahead.num_bytes <= BLOCK_BYTES

    asyncio.run(work())


def test_memory_stays_below_its_bound_whatever_is_read():
    async def work():
        limit = 3 * BLOCK_BYTES
        ahead, source = ReadAhead(limit, 64), Source()

        async def stream(name):
            for start in range(0, SIZE, 1 << 20):
                await read(ahead, source, start, min(start + (1 << 20), SIZE), name=name)
                assert ahead.num_bytes <= limit

        await asyncio.gather(*(stream(f"f{i}") for i in range(4)))

    asyncio.run(work())


def test_reads_here_and_there_start_no_block():
    async def work():
        ahead, source = ReadAhead(64 * BLOCK_BYTES, 64), Source()
        rng = random.Random(3)
        for _ in range(300):
            start = rng.randrange(SIZE - 60_000)
            rest = await read(ahead, source, start, start + 60_000)
            assert sum(span.stop - span.start for span in rest) == 60_000
        assert source.asked == []

    asyncio.run(work())


def test_two_readers_share_the_blocks():
    async def work():
        ahead, source = ReadAhead(64 * BLOCK_BYTES, 64), Source()
        for start in range(0, 4 << 20, 1 << 20):
            await read(ahead, source, start, start + (1 << 20))
        at = BLOCK_BYTES
        await asyncio.gather(*(read(ahead, source, at, at + (1 << 20)) for _ in range(5)))
        assert len(source.asked) == len(set(source.asked))

    asyncio.run(work())


def test_a_block_that_fails_is_told_to_who_waits_and_asked_for_anew_later():
    async def work():
        ahead, source = ReadAhead(64 * BLOCK_BYTES, 64), Source(fails=True)
        for start in range(0, 2 << 20, 1 << 20):
            await read(ahead, source, start, start + (1 << 20))
        with pytest.raises(OSError, match="away"):
            for start in range(2 << 20, SIZE, 1 << 20):
                await read(ahead, source, start, start + (1 << 20))
        while ahead.num_bytes:
            await asyncio.sleep(0.001)
        source.fails = False
        await read(ahead, source, 3 << 20, 4 << 20)

    asyncio.run(work())


def test_what_is_ahead_grows_with_what_was_read():
    async def work():
        ahead, source = ReadAhead(1 << 30, 64), Source()
        payload = 0
        for start in range(0, 3 << 20, 512 << 10):
            await read(ahead, source, start, start + (512 << 10))
            payload += 512 << 10
            fetched = sum(stop - start for start, stop in source.asked)
            assert fetched <= max(4 * payload, BLOCK_BYTES)

    asyncio.run(work())


def test_a_file_that_is_closed_holds_no_memory():
    async def work():
        ahead, source = ReadAhead(64 * BLOCK_BYTES, 64), Source()
        for start in range(0, 8 << 20, 1 << 20):
            await read(ahead, source, start, start + (1 << 20))
        assert ahead.num_bytes > 0
        ahead.forget("f")
        assert ahead.num_bytes == 0
        await asyncio.sleep(0.01)

    asyncio.run(work())


def in_turn(*names):
    """Files that are expected to be read one after the other; each comes from a source."""
    sources = {name: Source() for name in names}

    def next_one(name):
        at = names.index(name) + 1
        if at == len(names):
            return None
        then = names[at]
        return Readable(then, SIZE, sources[then].fetch, lambda: next_one(then))

    return sources, next_one


async def read_all(ahead, sources, name, next_one):
    step = 1 << 20
    for start in range(0, SIZE, step):
        end = min(start + step, SIZE)
        await read(ahead, sources[name], start, end, name=name, then=lambda: next_one(name))


def test_the_file_that_comes_next_is_on_its_way_before_this_one_ends():
    async def work():
        ahead = ReadAhead(64 * BLOCK_BYTES, 8)
        sources, next_one = in_turn("a", "b", "c")
        for _ in range(2):
            await read_all(ahead, sources, "a", next_one)
            assert sources["b"].asked
            await read_all(ahead, sources, "b", next_one)
            assert sources["c"].asked
            await read_all(ahead, sources, "c", next_one)
            for name in "bc":
                assert len(sources[name].asked) == len(set(sources[name].asked)) == 11
                sources[name].asked.clear()
        assert ahead.num_bytes <= 2 * BLOCK_BYTES

    asyncio.run(work())


def test_files_that_are_not_read_as_expected_are_soon_left_alone():
    async def work():
        ahead = ReadAhead(64 * BLOCK_BYTES, 8)
        names = [f"{i}" for i in range(12)]
        sources, next_one = in_turn(*names)
        for name in names[::2]:
            await read_all(ahead, sources, name, next_one)
        asked = [bool(sources[name].asked) for name in names[1::2]]
        assert asked[0]
        assert not any(asked[3:])
        # One block of each file that was read: its first bytes were read past it.
        assert ahead.num_bytes <= 6 * BLOCK_BYTES

    asyncio.run(work())
