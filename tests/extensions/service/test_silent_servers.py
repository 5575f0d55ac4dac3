"""Servers that say nothing: others are asked, it is said, and `fallback` takes over."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service import dispatcher as dispatcher_module
from shardwise.extensions.service.dispatcher import Dispatcher
from shardwise.testing import assert_batches_equal
from tests.support.batch_servers import BatchServers, loader, module_of, write_dataset
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("_short_waits")


@pytest.fixture
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SAY_S", "_FALLBACK_S", "_FIRST_LATE_S"):
        monkeypatch.setattr(dispatcher_module, name, 0.3)


def _loader(data: Any, executor: Any) -> sw.DataLoader:
    return loader(data, executor, batch_size=2, timeout=60)


def _dispatcher(num_servers: int) -> Dispatcher:
    builder = BatchBuilder(sw.wrap(list(range(100))))
    dispatcher = Dispatcher(builder, fallback=False)
    for number in range(num_servers):
        dispatcher.add(f"tcp://host-{number}:7000")
    return dispatcher


def _request() -> BatchRequest:
    return BatchRequest(epoch=0, step=0, ids=np.arange(2))


def test_with_fallback_a_frozen_server_does_not_hold_the_trainer_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_dataset(tmp_path, size=60)
    data = module_of(path).dataset()
    with BatchServers(path, 1) as servers, caplog.at_level(logging.WARNING):
        service = sw.service(servers.addresses, fallback=True)
        with _loader(data, service) as found, _loader(data, "inline") as truth:
            for step, (batch, wanted) in enumerate(zip(found, truth, strict=True)):
                assert_batches_equal(wanted, batch)
                if step == 2:
                    servers.freeze()
            assert found.stats()["service"]["made_here"] > 0
            assert "batches are made here until one does" in caplog.text
            servers.go_on()
            wait_for(lambda: f"batch server {servers.addresses[0]} answers" in caplog.text)


def test_with_fallback_a_port_that_never_answers_does_not_hold_the_trainer_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = sw.wrap(list(range(20)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with caplog.at_level(logging.WARNING):
            with _loader(data, sw.service(address, fallback=True)) as found:
                assert [n for batch in found for n in batch["__index__"]] == list(range(20))
    assert f"{address} (does not answer)" in caplog.text


def test_each_server_is_asked_in_turn_for_a_batch_that_is_late() -> None:
    dispatcher = _dispatcher(3)
    for server in dispatcher.servers:
        dispatcher.connected(server, 4)
    work = dispatcher.submit(_request())
    for num_asked in (1, 2, 3, 3):
        with dispatcher.changed:
            assert len(work.holders) == num_asked
            work.sent_at -= 1000
            dispatcher.watch(work)
    dispatcher.close()


def test_a_server_that_is_refused_is_no_error_before_the_others_were_reached() -> None:
    dispatcher = _dispatcher(2)
    wrong, other = dispatcher.servers
    work = dispatcher.submit(_request())
    dispatcher._dead_since = float("inf")  # however slow this machine is, less than `_SAY_S` ago
    dispatcher.failed(wrong, sw.ServiceError("the server has other data"))
    with dispatcher.changed:
        dispatcher.watch(work)
    dispatcher.failed(other, OSError("refused"))
    with dispatcher.changed, pytest.raises(sw.ServiceError, match=r"host-0:7000: .* other data"):
        dispatcher.watch(work)
    dispatcher.close()


def test_a_server_that_is_refused_is_no_error_after_one_that_answered_was_removed() -> None:
    dispatcher = _dispatcher(3)
    first, wrong, other = dispatcher.servers
    dispatcher.connected(first, 4)
    work = dispatcher.submit(_request())
    assert dispatcher.answered(first, work.number, ValueError("its answer"))
    dispatcher.remove(first)
    dispatcher.failed(wrong, sw.ServiceError("the server has another release"))
    dispatcher.failed(other, OSError("refused"))
    with dispatcher.changed:
        dispatcher.watch(dispatcher.submit(_request()))
    dispatcher.close()


def test_a_batch_that_has_no_server_and_no_thread_here_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(dispatcher_module, "ThreadPool", refused)
    dispatcher = _dispatcher(1)
    [server], work = dispatcher.servers, dispatcher.submit(_request())
    for _ in range(2):
        dispatcher.connected(server, 1)
        dispatcher.failed(server, EOFError())
    assert str(work.result) == "can't start new thread"


def test_batches_that_killed_their_servers_leave_no_room_to_make_others_here() -> None:
    dispatcher = _dispatcher(1)
    dispatcher._fallback = True
    (server,) = dispatcher.servers
    dispatcher.failed(server, OSError("refused"))
    dispatcher._num_local_now = 3  # of servers that died twice, one more than `_NUM_LOCAL`
    works = [dispatcher.submit(_request()) for _ in range(4)]
    dispatcher._dead_since = 0.0
    with dispatcher.changed:
        dispatcher.watch(works[0])
        assert not any(work.is_local for work in works)
    dispatcher.close()
