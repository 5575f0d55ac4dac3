"""Connections by UCX: bytes as they were sent, ends that wake who waits, forks, a missing ucxx."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.service import ucx
from shardwise.extensions.service.ucx import UcxListener, connect
from shardwise.extensions.service.ucx_worker import UcxWorker
from tests.support.transports import token_for, use_transport


class Pair:
    """Both ends of a connection; a thread reads at the server's, as servers do."""

    def __init__(self) -> None:
        self.listener = UcxListener("127.0.0.1", 0)
        self.client = connect(self.listener.address, timeout_s=60)
        self.server = self.listener.accept()
        self.server.limit(60)
        self.server.set_remote_endpoint(self.client.local_endpoint)
        self.client.send([b"hello"])
        greeting = bytearray(5)
        self.server.receive_into(memoryview(greeting))
        assert greeting == b"hello"
        self.server.limit(None)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with pytest.raises((OSError, EOFError)):
            self.server.receive_into(memoryview(bytearray(1)))

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self._reader.join()
        self.listener.close()


@contextmanager
def connected() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture(autouse=True, params=["ucx", "ucx-between-machines"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_transport(request.param, monkeypatch)
    return str(request.param)


def test_bytes_arrive_as_they_were_sent_and_large_ones_by_ucx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ucx, "_MOST_MESSAGE", 1_000_000)
    lengths: list[int] = []
    receive = UcxWorker.receive

    def counted(self: UcxWorker, buffer: memoryview, tag: int) -> object:
        lengths.append(buffer.nbytes)
        return receive(self, buffer, tag)

    monkeypatch.setattr(UcxWorker, "receive", counted)
    rng = np.random.default_rng(0)
    sizes = [[1], [0, 7, 65_535], [65_536], [10, 65_537, 0, 64, 2_500_000, 1], [200_000, 200_000]]
    with connected() as pair, ThreadPoolExecutor(1) as pool:
        for group in sizes:
            buffers = [rng.integers(0, 256, size, dtype=np.uint8) for size in group]
            for each in buffers:
                each.flags.writeable = False
            place = np.zeros(sum(group), dtype=np.uint8)
            sent = pool.submit(pair.server.send, [b.data for b in buffers])
            pair.client.receive_into(place.data)
            sent.result(60)
            assert place.tobytes() == b"".join(each.tobytes() for each in buffers)
    assert lengths == [65_536, 65_537, 1_000_000, 1_000_000, 500_000, 200_000, 200_000]


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_closed_connection_wakes_who_sends_and_who_receives(end: str) -> None:
    with connected() as pair, ThreadPoolExecutor(2) as pool:
        began = threading.Event()

        def send() -> None:
            try:
                while True:
                    pair.server.send([bytes(300_000)])
            finally:
                pair.server.close()

        def receive() -> None:
            place = np.zeros(300_000, dtype=np.uint8)
            while True:
                pair.client.receive_into(place.data)
                began.set()

        ends = [pool.submit(send), pool.submit(receive)]
        assert began.wait(60)
        (pair.client if end == "client" else pair.server).close()
        for each in ends:
            with pytest.raises((OSError, EOFError)):
                each.result(60)


def test_a_message_that_its_client_does_not_wait_for_ends_with_the_connection() -> None:
    with connected() as pair, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pair.server.send, [bytes(300_000)])
        # Its first segment is there, so the server waits for the client to be ready.
        assert pair.client._read() == (ucx._MESSAGE, 300_000)
        pair.server.close()
        with pytest.raises(OSError, match="closed"):
            sent.result(60)


def test_a_time_limit_ends_a_wait() -> None:
    with connected() as pair:
        pair.client.limit(0.05)
        with pytest.raises(TimeoutError):
            pair.client.receive_into(memoryview(bytearray(1)))


_GONE = """
import os, random, threading, time
from shardwise.extensions.service.ucx_worker import UcxWorker

sender = UcxWorker()
for number in range(300):
    client = UcxWorker()
    address, moment = client.address, time.perf_counter() + random.Random(number).random() * 2e-3

    def close():
        while time.perf_counter() < moment:
            pass
        client.close()

    thread = threading.Thread(target=close)
    thread.start()
    try:
        endpoint = sender.endpoint(address, handles_errors=True)
    except OSError:
        endpoint = None
    thread.join()
    if endpoint is not None:
        sender.close_endpoint(endpoint)
sender.close()
"""


def test_a_client_that_goes_while_the_server_connects_to_it_ends_no_server(transport: str) -> None:
    if transport != "ucx-between-machines":
        pytest.skip("within a machine there is no connection to make")
    command = [sys.executable, "-c", _GONE]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


_FORK = """
import gc, os, sys, threading
import numpy as np
from shardwise.extensions.service.ucx import UcxListener, connect

listener = UcxListener("127.0.0.1", 0)
client = connect(listener.address, timeout_s=60)
server = listener.accept()
server.set_remote_endpoint(client.local_endpoint)
client.send([b"x"])
server.receive_into(memoryview(bytearray(1)))
threading.Thread(target=lambda: server.receive_into(memoryview(bytearray(1))), daemon=True).start()
place = np.zeros(300_000, dtype=np.uint8)


def batch(value):
    thread = threading.Thread(target=server.send, args=([bytes([value]) * place.size],))
    thread.start()
    client.receive_into(place.data)
    thread.join()
    assert (place == value).all()


batch(1)
for how in ("leaves at once", "ends as a program", "drops all"):
    pid = os.fork()
    if not pid:
        if how == "leaves at once":
            os._exit(0)
        if how == "drops all":
            del client, server, listener, batch
            gc.collect()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0, how
    batch(2)
print("the parent goes on")
# It ends without close(): no thread of C++ may outlive what it works on.
"""


def test_a_fork_leaves_its_parents_connections_alone() -> None:
    # Python 3.12 and newer warn of any fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "the parent goes on\n", "")


def test_without_ucxx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ucxx._lib.libucxx", None)
    data = sw.wrap(list(range(8)))
    token = token_for("ucx", tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"shardwise\[ucx\]"):
        sw.DataLoader(
            data, batch_size=2, executor=sw.service("ucx://127.0.0.1:1", token_file=token)
        )
    with pytest.raises(ModuleNotFoundError, match=r"shardwise\[ucx\]"):
        UcxListener("127.0.0.1", 0)
