"""Announced ranges: the right bytes, each fetched once, in their order, in bounded memory."""

from __future__ import annotations

import asyncio
import math
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest

from shardwise.extensions.remote.prefetch import planned as planned_module
from shardwise.extensions.remote.prefetch.planned import PlannedReads
from shardwise.storage.byte_ranges import ByteRange, copy_received
from shardwise.storage.client import Reply
from shardwise.storage.protocol import FileStat
from tests.support.event_loops import in_event_loop

SIZE = 40 << 20
PATTERN = random.Random(0).randbytes(997)


def content(start, stop):
    first = start % 997
    repeated = PATTERN * ((stop - start) // 997 + 2)
    return repeated[first : first + stop - start]


class Object:
    """An object whose byte i is known, that counts what is requested of it, and sends pieces."""

    def __init__(self, *, piece_bytes=1 << 20, gate=None, fails=False):
        self.asked = []
        self.num_cancelled = 0
        self._piece_bytes, self._gate, self._fails = piece_bytes, gate, fails

    async def stream(self, start, stop, take):
        self.asked.append((start, stop))
        try:
            if self._gate is not None:
                await self._gate.wait()
            if self._fails:
                raise OSError("away")
            while start < stop:
                await asyncio.sleep(0)
                end = min(stop, start + self._piece_bytes)
                take(Reply(memoryview(content(start, end)), FileStat(SIZE, 0), 0.001))
                start = end
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    @property
    def asked_bytes(self):
        return sum(stop - start for start, stop in self.asked)


def announce(planned, owner, source, *spans, name="f"):
    planned.add(owner, name, source, [ByteRange(*span, 0) for span in spans])
    planned.fetch()


async def read(planned, start, stop, *, name="f"):
    """Read a range as a file does, and compare what was announced; the ranges that were not."""
    buffer = bytearray(stop - start)
    received, rest = await planned.read(name, [ByteRange(start, stop, 0)])
    copy_received(received, memoryview(buffer))
    for span in rest:
        buffer[span.begin : span.begin + span.stop - span.start] = content(span.start, span.stop)
    assert bytes(buffer) == content(start, stop)
    return [(span.start, span.stop) for span in rest]


@in_event_loop
async def test_neighbours_of_several_requests_share_one_of_the_store():
    planned, source = PlannedReads(64 << 20, 1), Object()
    # The first takes the one slot; the others come together meanwhile.
    announce(planned, "first", source, (0, 1000))
    for number in range(1, 6):
        announce(planned, number, source, (number * 100_000, (number + 1) * 100_000 - 512))
    for number in range(1, 6):
        assert not await read(planned, number * 100_000, (number + 1) * 100_000 - 512)
    assert source.asked == [(0, 1000), (100_000, 599_488)]


@in_event_loop
async def test_ranges_far_apart_are_fetched_without_what_lies_between():
    planned, source = PlannedReads(64 << 20, 64), Object()
    spans = [(start, start + 20_000) for start in range(0, 10 << 20, 1 << 20)]
    announce(planned, "owner", source, *spans)
    for start, stop in reversed(spans):
        assert not await read(planned, start, stop)
    assert source.asked == spans


@pytest.mark.parametrize("seed", range(6))
@in_event_loop
async def test_in_whatever_parts_it_is_read_it_is_right_and_fetched_once(seed):
    draw = random.Random(seed)
    planned, source = PlannedReads(16 << 20, 4), Object(piece_bytes=draw.choice([1000, 3 << 20]))
    edges = sorted({0, SIZE, *(draw.randrange(SIZE) for _ in range(30))})
    for number, span in enumerate(pairwise(edges)):
        announce(planned, number, source, span)
    for number, (start, stop) in enumerate(pairwise(edges)):
        middle = draw.randrange(start + 1, stop)
        await asyncio.gather(read(planned, start, middle), read(planned, middle, stop))
        planned.withdraw(number)
    assert source.asked_bytes == SIZE
    assert all(before[1] <= after[0] for before, after in pairwise(sorted(source.asked)))
    assert planned.num_bytes == 0


@in_event_loop
async def test_what_is_held_is_bounded_until_its_requests_are_finished():
    planned, source = PlannedReads(8 << 20, 64), Object()
    spans = [(start, start + (1 << 20)) for start in range(0, 32 << 20, 2 << 20)]
    for number, span in enumerate(spans):
        announce(planned, number, source, span)
    for number, span in enumerate(spans):
        await read(planned, *span)
        # A reader gets what it waits for, whatever the bound.
        assert planned.num_bytes <= 9 << 20
        planned.withdraw(number)
    assert source.asked == spans


@in_event_loop
async def test_a_sample_that_comes_again_is_fetched_once():
    planned, source = PlannedReads(64 << 20, 64), Object()
    announce(planned, 1, source, (5000, 9000))
    announce(planned, 2, source, (5000, 9000))
    for owner in (1, 2):
        assert not await read(planned, 5000, 9000)
        planned.withdraw(owner)
    assert source.asked == [(5000, 9000)]
    assert planned.num_bytes == 0


@in_event_loop
async def test_what_was_not_announced_is_left_to_its_reader():
    planned, source = PlannedReads(64 << 20, 64), Object()
    announce(planned, 1, source, (100_000, 200_000))
    assert await read(planned, 50_000, 250_000) == [(50_000, 100_000), (200_000, 250_000)]
    assert await read(planned, 0, 1000, name="other") == [(0, 1000)]


@in_event_loop
async def test_withdrawn_ranges_leave_no_request_unless_a_reader_waits():
    planned, gate = PlannedReads(64 << 20, 64), asyncio.Event()
    source = Object(gate=gate)
    announce(planned, 1, source, (0, 1000), (1 << 20, (1 << 20) + 1000))
    reader = asyncio.ensure_future(read(planned, 0, 1000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    planned.withdraw(1)
    gate.set()
    assert not await reader
    await asyncio.sleep(0)
    assert source.num_cancelled == 1
    assert planned.num_bytes == 0
    assert await read(planned, 0, 1000) == [(0, 1000)]


@in_event_loop
async def test_an_error_is_its_readers_and_the_next_read_requests_again():
    planned, source = PlannedReads(64 << 20, 64), Object(fails=True)
    announce(planned, 1, source, (0, 1000))
    with pytest.raises(OSError, match="away"):
        await read(planned, 0, 1000)
    assert await read(planned, 0, 1000) == [(0, 1000)]


@in_event_loop
async def test_a_sequence_waits_for_its_next_pieces_while_enough_requests_are_in_flight():
    planned, gate = PlannedReads(256 << 20, 64), asyncio.Event()
    source, step = Object(gate=gate), 1 << 20
    for number in range(30):
        announce(planned, number, source, (number * step, (number + 1) * step))
    # Of samples elsewhere, each is requested at once.
    announce(planned, "other", source, (39 << 20, (39 << 20) + 1000))
    gate.set()
    for number in range(30):
        assert not await read(planned, number * step, (number + 1) * step)
        planned.withdraw(number)
    assert len(source.asked) <= 12
    assert source.asked_bytes == 30 * step + 1000


@in_event_loop
async def test_idle_connections_share_what_is_announced():
    planned, source = PlannedReads(256 << 20, 64), Object()
    planned.add("all", "f", source, [ByteRange(0, 32 << 20, 0)])
    planned.fetch()
    assert not await read(planned, 0, 32 << 20)
    assert sorted(source.asked) == [(at, at + (8 << 20)) for at in range(0, 32 << 20, 8 << 20)]


@in_event_loop
async def test_a_request_starts_as_soon_as_the_bound_has_room_for_it():
    planned, source = PlannedReads(256 << 20, 64), Object(piece_bytes=64 << 20)
    step = 32 << 20
    for number in range(9):
        announce(planned, number, source, (number * step, (number + 1) * step))
        await asyncio.sleep(0)  # each fills its own request
    assert planned.num_bytes == 8 * step
    assert not await read(planned, 0, step)
    assert source.asked_bytes == 8 * step
    planned.withdraw(0)
    await asyncio.sleep(0)
    assert source.asked_bytes == 9 * step


@pytest.fixture
def paced(monkeypatch):
    """An object that sends so many bytes a second of a clock of its own."""
    now, piece = 0.0, memoryview(bytes(4 << 20))

    class Paced:
        bytes_a_s = math.inf

        async def stream(self, start, stop, take):
            nonlocal now
            for _ in range(start, stop, len(piece)):
                await asyncio.sleep(0)
                now += len(piece) / self.bytes_a_s
                take(Reply(piece, FileStat(1 << 40, 0), 0.001))

    monkeypatch.setattr(planned_module, "time", SimpleNamespace(monotonic=lambda: now))
    return Paced()


async def read_all(planned, source, start, stop):
    """Announce a range and read it; returns what was held of it at first."""
    announce(planned, "owner", source, (start, stop))
    held = planned.num_bytes
    await planned.read("f", [ByteRange(start, stop, 0)])
    await asyncio.sleep(0)
    planned.withdraw("owner")
    return held


@pytest.mark.parametrize(("bytes_a_s", "share"), [(80e6, 1), (4e9, 2)])
@in_event_loop
async def test_fast_replies_take_half_of_the_bound_and_slow_ones_all_of_it(bytes_a_s, share, paced):
    paced.bytes_a_s, bound = bytes_a_s, 128 << 20
    planned = PlannedReads(bound, 64)
    assert await read_all(planned, paced, 0, bound) == bound
    assert await read_all(planned, paced, bound, 3 * bound) == bound // share


@in_event_loop
async def test_replies_by_a_clock_that_stands_still_are_outweighed_by_some_slow_ones(paced):
    bound = 128 << 20
    planned = PlannedReads(bound, 64)
    held = [await read_all(planned, paced, 0, bound)]
    paced.bytes_a_s = 80e6
    held += [await read_all(planned, paced, at * bound, (at + 1) * bound) for at in range(1, 12)]
    assert (held[0], held[1], held[-1]) == (bound, bound // 2, bound)


@in_event_loop
async def test_a_file_shorter_than_what_was_requested_of_it_counts_as_what_it_is():
    class Short(Object):
        async def stream(self, start, stop, take):
            self.asked.append((start, stop))
            take(Reply(memoryview(content(0, 1000)), FileStat(1000, 0), 0.001))

    planned, source = PlannedReads(8 << 20, 64), Short()
    for owner in range(3):
        announce(planned, owner, source, (0, 4 << 20), name=f"f{owner % 2}")
    assert planned.object_of("f0") is source
    # One announced twice is fetched once.
    assert await read(planned, 0, 1000, name="f0") == []
    assert await read(planned, 0, 1000, name="f1") == []
    assert planned.num_bytes == 2000
    assert len(source.asked) == 2
    for owner in range(3):
        planned.withdraw(owner)
    assert planned.num_bytes == 0
    assert planned.object_of("f0") is None
