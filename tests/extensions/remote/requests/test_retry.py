"""A request ends: with a whole reply, or with one clear error within its budget."""

from __future__ import annotations

import asyncio
import gc
import time
from unittest import mock

import pytest

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.extensions.remote.requests.hedge import LatencyTracker
from shardwise.extensions.remote.requests.retry import RetryingClient
from shardwise.storage.client import AttemptError, Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat
from tests.support.event_loops import VirtualTime
from tests.support.io_counts import counted_io

STAT = FileStat(100, 0, '"e"')


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch):
    """Requests wait for seconds; the tests don't."""
    clock = VirtualTime()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(asyncio, "run", clock.run)
    return clock


class Scripted:
    """A client that does one thing after the other; the last one for ever."""

    moves_objects = False

    def __init__(self, *steps):
        self.steps = list(steps)
        self.num_asked = 0
        self.num_ended = 0

    async def get(self, key, start, stop, etag):
        step = self.steps[min(self.num_asked, len(self.steps) - 1)]
        self.num_asked += 1
        try:
            if isinstance(step, AttemptError):
                raise step
            if step == "stall":
                await asyncio.Event().wait()
            return Reply(memoryview(bytes(stop - start)), STAT, 0.001)
        finally:
            self.num_ended += 1

    async def head(self, key):
        return (await self.get(key, 0, 1, "")).stat

    async def names(self, prefix, *, delimiter):
        await self.get(prefix, 0, 1, "")
        return [prefix]


def ask(client, *, slots=4, **options):
    async def work():
        requests = RetryingClient(client, StorageOptions(**options), asyncio.Semaphore(slots))
        return await requests.get("s3://b/k", "k", 0, 10, "")

    return asyncio.run(work())


def passing(cause="HTTP 503"):
    return AttemptError(cause, "passing")


def test_what_may_pass_is_tried_again_and_counted():
    client = Scripted(passing(), passing(), "ok")
    with counted_io() as counts:
        assert len(ask(client).data) == 10
    assert client.num_asked == 3
    assert (counts["retries"], counts["requests"], counts["bytes"]) == (2, 3, 10)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("missing", MissingShardError),
        ("denied", StorageError),
        ("changed", StaleIndexError),
        ("ended", DataError),
        ("refused", StorageError),
    ],
)
def test_what_is_final_is_raised_after_one_attempt(kind, error):
    client = Scripted(AttemptError("HTTP 4xx", kind))
    with pytest.raises(error, match="HTTP 4xx") as caught:
        ask(client)
    assert type(caught.value) is error
    assert "s3://b/k" in str(caught.value)
    assert client.num_asked == 1


def test_attempts_have_an_end_that_the_message_names():
    client = Scripted(passing("the reply was cut short"))
    with pytest.raises(StorageError, match=r"cut short \(3 attempts .*max_attempts=3") as caught:
        ask(client, max_attempts=3)
    assert "s3://b/k" in str(caught.value)
    assert client.num_asked == 3


def test_a_server_that_never_answers_is_given_up_at_the_budget():
    began = time.monotonic()
    client = Scripted("stall")
    with pytest.raises(StorageError, match="no answer in time"):
        ask(client, request_timeout_s=0.3, hedge=False)
    assert 0.25 < time.monotonic() - began < 30
    assert client.num_ended == client.num_asked


def test_a_late_request_gets_a_second_one_and_the_first_is_ended():
    client = Scripted("stall", "ok")
    with counted_io() as counts:
        assert len(ask(client).data) == 10
    assert counts["hedges"] == 1
    assert client.num_asked == client.num_ended == 2


@pytest.mark.parametrize("seconds", [0.7, 2.0])
def test_hedges_stay_within_their_budget_where_a_full_link_makes_every_request_late(seconds):
    """Each reply takes as long as the number of requests in flight makes it."""

    class FullLink(Scripted):
        num_running = 0

        async def get(self, key, start, stop, etag):
            self.num_asked += 1
            self.num_running += 1
            try:
                await asyncio.sleep(seconds * self.num_running / 8)
            finally:
                self.num_running -= 1
            return Reply(memoryview(bytes(stop - start)), STAT, 0.01)

    async def work():
        slots = asyncio.Semaphore(8)
        requests = RetryingClient(client, StorageOptions(), slots)
        asked = [requests.get("s3://b/k", "k", 0, 4 << 20, "") for _ in range(400)]
        await asyncio.gather(*asked)

    client = FullLink()
    with counted_io() as counted:
        asyncio.run(work())
    assert counted["requests"] == 400 + counted["hedges"]
    assert 8 <= counted["hedges"] <= 0.2 * 400 + 8
    # The attempts that lost had received something.
    assert 400 * (4 << 20) < counted["bytes"] <= counted["requests"] * (4 << 20)


def test_a_long_range_is_not_late_before_a_slow_line_can_have_sent_it():
    latency = LatencyTracker()
    assert latency.late_s(8 << 20) == 0.5
    latency.add(400_000, 0.1, 0.2)  # 4 MB/s
    assert latency.late_s(8 << 20) == pytest.approx(2 * (0.1 + (8 << 20) / 4e6))
    assert latency.late_s(0) == 0.5
    latency.num_in_flight = 3  # they share the line with it
    assert latency.late_s(8 << 20) == pytest.approx(8 * (0.1 + (8 << 20) / 4e6))
    for _ in range(32):
        latency.add(8 << 20, 0.1, 1.0)
    assert latency.late_s(8 << 20) == pytest.approx(1.25)


def test_without_hedging_there_is_no_second_one():
    client = Scripted("stall", "ok")
    with pytest.raises(StorageError):
        ask(client, hedge=False, request_timeout_s=0.8, max_attempts=1)
    assert client.num_asked == 1


def test_hedges_that_fail_are_followed_by_others():
    # The first one hangs; what fails meanwhile is none that may still come.
    client = Scripted("stall", *[passing()] * 3, "ok")
    assert len(ask(client, max_attempts=1).data) == 10
    assert client.num_asked == client.num_ended == 5


def test_a_hedge_that_fails_is_made_up_for_without_a_longer_wait(monkeypatch):
    waits = []
    wait = asyncio.wait

    async def noted(tasks, *, timeout=None, **options):
        waits.append(timeout)
        return await wait(tasks, timeout=timeout and timeout / 50, **options)

    monkeypatch.setattr(asyncio, "wait", noted)
    ask(Scripted("stall", passing(), passing(), "ok"), max_attempts=1)
    first = waits[0]
    # Each failure ends a wait of twice the time; the next one is not longer than the first.
    assert waits == [first, 2 * first] * 3
    waits.clear()
    ask(Scripted("stall", "stall", "stall", "ok"), max_attempts=1)
    assert waits == [first, 2 * first, 2 * first, None]


def test_a_failed_hedge_does_not_end_the_first():
    class Late(Scripted):
        async def get(self, key, start, stop, etag):
            number, self.num_asked = self.num_asked, self.num_asked + 1
            if number == 0:
                while self.num_asked < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                return Reply(memoryview(bytes(10)), STAT, 0.001)
            raise passing()

    client = Late()
    assert len(ask(client, max_attempts=1).data) == 10


@pytest.mark.parametrize("slots", [1, 3])
def test_slots_bound_requests_in_flight_and_waiting_for_one_takes_no_budget(slots):
    most = 0

    class Slow(Scripted):
        async def get(self, key, start, stop, etag):
            nonlocal most
            most = max(most, self.num_asked - self.num_ended + 1)
            self.num_asked += 1
            await asyncio.sleep(0.05)
            self.num_ended += 1
            return Reply(memoryview(bytes(stop - start)), STAT, 0.001)

    async def work():
        # The last of 90 requests waits for 1.5 s and more.
        options = StorageOptions(hedge=False, request_timeout_s=1.0)
        requests = RetryingClient(Slow(), options, asyncio.Semaphore(slots))
        return await asyncio.gather(*(requests.get("u", "k", 0, 1, "") for _ in range(90)))

    assert len(asyncio.run(work())) == 90
    assert most == slots


def test_head_and_names_are_tried_again_too():
    async def work(what):
        client = Scripted(passing(), "ok")
        requests = RetryingClient(client, StorageOptions(), asyncio.Semaphore(1))
        found = await what(requests)
        return found, client.num_asked

    assert asyncio.run(work(lambda r: r.head("u", "k"))) == (STAT, 2)
    assert asyncio.run(work(lambda r: r.names("u", "p", delimiter=True))) == (["p"], 2)


def test_attempts_that_fail_together_are_all_looked_at(caplog):
    class Together(Scripted):
        async def get(self, key, start, stop, etag):
            self.num_asked += 1
            if self.num_asked > 2:
                return Reply(memoryview(bytes(stop - start)), STAT, 0.001)
            if self.num_asked == 1:
                self.both = asyncio.Event()
            else:
                self.both.set()
            await self.both.wait()
            raise passing()

    client = Together()
    assert len(ask(client).data) == 10
    assert client.num_asked == 3
    gc.collect()
    assert "never retrieved" not in caplog.text


class Pouring(Scripted):
    """A client whose long replies come in pieces; each of them ends as the script says.

    A step of the script is how many bytes come, and what then happens: an error, "stall", or None
    for a reply that ends.
    """

    PIECE = 1000

    def __init__(self, *script, steps=("ok",)):
        super().__init__(*steps)
        self.script = list(script)
        self.streams = []
        self.gets = []

    async def get(self, key, start, stop, etag):
        self.gets.append((start, stop))
        await super().get(key, start, stop, etag)
        return Reply(memoryview(content(start, stop)), STAT, 0.001)

    async def stream(self, key, start, stop, etag, piece_bytes):
        self.streams.append(start)
        most, end = self.script.pop(0) if self.script else (None, None)
        last = stop if most is None else start + most
        while start < last:
            await asyncio.sleep(0)
            at = min(last, start + self.PIECE)
            yield Reply(memoryview(content(start, at)), STAT, 0.001)
            start = at
        if end == "stall":
            await asyncio.Event().wait()
        if end is not None:
            raise end


def content(start, stop):
    return bytes(i % 251 for i in range(start, stop))


def pour(client, *, length=10_500, part_bytes=2000, **options):
    """What is handed on of a long range."""
    found = []

    async def work():
        requests = RetryingClient(client, StorageOptions(**options), asyncio.Semaphore(4))
        await requests.stream("s3://b/k", "k", 100, 100 + length, "", take=found.append)

    with mock.patch.object(LatencyTracker, "max_request_bytes", part_bytes):
        asyncio.run(work())
    assert b"".join(reply.data for reply in found) == content(100, 100 + length)


def test_a_long_range_is_one_request_handed_on_in_pieces():
    client = Pouring()
    with counted_io() as counts:
        pour(client)
    assert client.streams == [100]
    assert client.gets == []
    assert (counts["requests"], counts["bytes"]) == (1, 10_500)


def test_a_reply_that_breaks_off_is_gone_on_with_where_it_ended():
    client = Pouring((3000, passing("cut short")))
    with counted_io() as counts:
        pour(client)
    assert client.streams == [100, 5100]
    assert client.gets == [(3100, 5100)]
    assert counts["retries"] == 1


def test_a_reply_that_falls_silent_is_given_up():
    client = Pouring((3000, "stall"), (0, "stall"))
    began = time.monotonic()
    with counted_io() as counts:
        pour(client)
    assert time.monotonic() - began < 30
    # What is left comes in parts then: a third long one would be as good as the others.
    assert client.streams == [100, 5100]
    assert client.gets[:2] == [(3100, 5100), (5100, 7100)]
    assert counts["hedges"] == 2


def test_what_is_final_is_raised_by_the_request_that_follows():
    for kind, error in (("denied", StorageError), ("changed", StaleIndexError)):
        client = Pouring(
            (1000, AttemptError("HTTP 4xx", kind)), steps=[AttemptError("HTTP 4xx", kind)]
        )
        with pytest.raises(error, match="HTTP 4xx") as caught:
            pour(client)
        assert "s3://b/k" in str(caught.value)


def test_a_reply_that_is_late_because_the_loop_was_held_up_is_not_given_up(virtual_time):
    class Held(Pouring):
        async def stream(self, key, start, stop, etag, piece_bytes):
            pieces = super().stream(key, start, stop, etag, piece_bytes)
            async for reply in pieces:
                if reply.data == content(100, 1100):
                    # As when another thread does not let go of the GIL.
                    asyncio.get_running_loop().call_soon(virtual_time.hold_up, 2.5)
                    await asyncio.sleep(0.1)
                yield reply

    client = Held()
    with counted_io() as counts:
        pour(client)
    assert client.streams == [100]
    assert not counts["hedges"]


def test_an_object_that_ends_before_the_range_does_ends_it():
    class Short(Pouring):
        async def get(self, key, start, stop, etag):
            return await super().get(key, start, min(stop, 4100), etag)

    found = []

    async def work():
        requests = RetryingClient(Short((3000, None)), StorageOptions(), asyncio.Semaphore(4))
        await requests.stream("s3://b/k", "k", 100, 10_100, "", take=found.append)

    asyncio.run(work())
    assert b"".join(reply.data for reply in found) == content(100, 4100)


def test_a_long_range_that_is_not_wanted_any_more_is_ended():
    client = Pouring((3000, "stall"))
    ended = []

    async def work():
        requests = RetryingClient(client, StorageOptions(hedge=False), asyncio.Semaphore(1))
        pieces = []
        task = asyncio.ensure_future(
            requests.stream("s3://b/k", "k", 0, 9000, "", take=pieces.append)
        )
        while len(pieces) < 3:
            await asyncio.sleep(0)
        task.cancel()
        ended.extend(await asyncio.gather(task, return_exceptions=True))
        # Its slot is free again.
        await requests.get("s3://b/k", "k", 0, 10, "")

    asyncio.run(work())
    assert isinstance(ended[0], asyncio.CancelledError)
