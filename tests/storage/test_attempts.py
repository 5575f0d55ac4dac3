"""A request ends: with a whole reply, or with one clear error within its budget."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from shardwise.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.storage.attempts import Reply, Requests
from shardwise.storage.counts import IO_COUNTS
from shardwise.storage.failures import AttemptError
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

STAT = FileStat(100, 0, '"e"')


class Scripted:
    """A client that does one thing after the other; the last one for ever."""

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
        requests = Requests(client, StorageOptions(**options), asyncio.Semaphore(slots))
        return await requests.get("s3://b/k", "k", 0, 10, "")

    return asyncio.run(work())


def passing(cause="HTTP 503"):
    return AttemptError(cause, "passing")


def test_what_may_pass_is_tried_again_and_counted():
    before = IO_COUNTS.snapshot()
    client = Scripted(passing(), passing(), "ok")
    assert len(ask(client).data) == 10
    after = IO_COUNTS.snapshot()
    assert client.num_asked == 3
    assert after["retries"] - before["retries"] == 2
    assert after["requests"] - before["requests"] == 3
    assert after["bytes"] - before["bytes"] == 10


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
    before = IO_COUNTS.snapshot()["hedges"]
    client = Scripted("stall", "ok")
    assert len(ask(client).data) == 10
    assert IO_COUNTS.snapshot()["hedges"] - before == 1
    assert client.num_asked == client.num_ended == 2


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


def test_no_more_requests_are_in_flight_than_there_are_slots():
    running = most = 0

    class Slow(Scripted):
        async def get(self, key, start, stop, etag):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return Reply(memoryview(bytes(stop - start)), STAT, 0.001)

    async def work():
        requests = Requests(Slow(), StorageOptions(hedge=False), asyncio.Semaphore(3))
        await asyncio.gather(*(requests.get("u", "k", 0, 1, "") for _ in range(12)))

    asyncio.run(work())
    assert most == 3


def test_waiting_for_a_slot_does_not_use_up_the_budget():
    class Slow(Scripted):
        async def get(self, key, start, stop, etag):
            await asyncio.sleep(0.05)
            return Reply(memoryview(bytes(stop - start)), STAT, 0.001)

    async def work():
        options = StorageOptions(hedge=False, request_timeout_s=1.0)
        requests = Requests(Slow(), options, asyncio.Semaphore(1))
        return await asyncio.gather(*(requests.get("u", "k", 0, 1, "") for _ in range(30)))

    assert len(asyncio.run(work())) == 30


def test_head_and_names_are_tried_again_too():
    async def work(what):
        client = Scripted(passing(), "ok")
        requests = Requests(client, StorageOptions(), asyncio.Semaphore(1))
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
