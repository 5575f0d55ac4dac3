"""A store that is away: how long it is waited for, and what the user hears."""

from __future__ import annotations

import asyncio
import logging
import re
import time

import pytest

from shardwise.base.counters import outages
from shardwise.base.errors import MissingShardError, StorageError
from shardwise.extensions.remote.requests.retry import RetryingClient
from shardwise.storage.client import AttemptError
from shardwise.storage.options import StorageOptions
from tests.extensions.remote.requests.test_retry import Scripted, passing, virtual_time  # noqa: F401
from tests.support.io_counts import counted_io


def outages_of(url: str) -> list[str]:
    """What this test's requests wait for; those of other tests may be retried in the background."""
    return [each for each in outages() if url in each]


def ask(*clients, is_known=False, **options):
    """Let each client serve one request of the same store, all at a time."""

    async def work():
        requests = RetryingClient(
            clients[0], StorageOptions(hedge=False, **options), asyncio.Semaphore(99)
        )
        replies = []

        async def one(client):
            requests.client = client
            replies.append(
                await requests.get("https://h/k?sig=S3CRET", "k", 0, 10, "", is_known=is_known)
            )

        await asyncio.gather(*(one(client) for client in clients))
        return replies

    return asyncio.run(work())


def test_a_store_that_is_away_for_a_minute_is_waited_for(caplog):
    began = time.monotonic()

    class Away(Scripted):
        async def get(self, *args):
            self.steps = (
                ["ok"] if time.monotonic() - began > 60 else [passing("connection refused")]
            )
            return await super().get(*args)

    with counted_io() as counts, caplog.at_level(logging.WARNING, "shardwise"):
        assert len(ask(*[Away() for _ in range(5)], is_known=True)) == 5
    took = time.monotonic() - began
    assert 60 < took < 75
    away, back = caplog.messages
    assert "S3CRET" not in caplog.text
    assert "connection refused" in away
    assert re.search(r"for 1[0-3] s .* 2(8[7-9]|90) s more, 300 s in all", away)
    assert "answers again" in back
    assert 60_000 < counts["outage_ms"] < 75_000
    assert outages_of("https://h/k") == []


def test_a_host_that_never_answered_is_said_to_be_tried_for_as_long_as_it_is(caplog):
    with pytest.raises(StorageError, match="a host that has never answered gets 30 s"):
        ask(Scripted(passing("connection refused")))
    (away,) = caplog.messages
    assert re.search(r"for 1[0-3] s .* (1[7-9]|20) s more, 30 s in all", away)


def test_what_passes_within_ten_seconds_is_not_told(caplog):
    client = Scripted(*[passing()] * 6, "ok")
    ask(client, is_known=True)
    assert not caplog.messages


def test_time_bounds_a_request_and_pauses_grow_to_ten_seconds():
    client = Scripted(passing("connection refused"))
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"connection refused \(.*request_timeout_s=300\)"):
        ask(client, is_known=True)
    assert 285 < time.monotonic() - began <= 300
    # 0.05 s doubled up to 10 s: some nine attempts on the way there, then one in 5 to 10 s.
    assert 300 / 10 < client.num_asked < 300 / 5 + 12


def test_a_host_that_has_never_answered_gets_half_a_minute():
    began = time.monotonic()
    with pytest.raises(StorageError, match="never answered gets 30 s: is its name right"):
        ask(Scripted(passing("the host's name is not known")))
    assert 15 < time.monotonic() - began <= 30


def test_a_host_that_answers_with_an_error_is_one():
    began = time.monotonic()
    with pytest.raises(StorageError, match="request_timeout_s=300"):
        ask(Scripted(AttemptError("HTTP 503", "passing", status=503)))
    assert time.monotonic() - began > 285


@pytest.mark.parametrize(("moves", "known"), [(True, False), (False, True)])
def test_a_missing_object_is_final(moves, known):
    client = Scripted(AttemptError("HTTP 404", "missing"))
    client.moves_objects = moves
    with pytest.raises(MissingShardError):
        ask(client, is_known=known)
    assert client.num_asked == 1


def test_an_object_that_moves_between_servers_is_waited_for():
    client = Scripted(*[AttemptError("HTTP 404", "missing")] * 8, "ok")
    client.moves_objects = True
    ask(client, is_known=True)
    gone = Scripted(AttemptError("HTTP 404", "missing"))
    gone.moves_objects = True
    began = time.monotonic()
    with pytest.raises(MissingShardError):
        ask(gone, is_known=True)
    assert 45 < time.monotonic() - began <= 60


def test_a_request_that_is_given_up_by_its_reader_leaves_no_outage():
    async def work():
        requests = RetryingClient(Scripted(passing()), StorageOptions(), asyncio.Semaphore(1))
        task = asyncio.ensure_future(requests.get("u", "k", 0, 1, "", is_known=True))
        while not outages_of("'u'"):
            await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert outages_of("'u'") == []

    asyncio.run(work())
