"""Peers that never greet cost no threads and few files, and take no training its servers."""

from __future__ import annotations

import errno
import json
import random
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service import reception
from shardwise.extensions.service import server as server_module
from shardwise.extensions.service.addresses import host_and_port
from shardwise.extensions.service.batches import encode_request
from shardwise.extensions.service.frames import _PREFIX, Kind, write
from shardwise.extensions.service.greeting import ClientSide, greet
from shardwise.extensions.service.server import BatchServer
from shardwise.extensions.service.tcp import TcpConnection, TcpListener
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.token import make_token
from shardwise.extensions.service.version import VersionWord, builder_options
from shardwise.testing import assert_batches_equal
from tests.support.batch_servers import BatchServers, check_epoch, loader, module_of, serving
from tests.support.certificates import Authority
from tests.support.server_process import skip_or_fail
from tests.support.waiting import wait_for

# The server opens 40 files for a sample, of the few that it may open.
_SERVED = """
import resource, sys
import shardwise as sw
from shardwise.extensions.service import reception

if "serve" in sys.argv:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
    reception._LEAST_S = 0.02


def opened(sample):
    files = [open(__file__) for _ in range(40)]
    for each in files:
        each.close()
    return sample


def dataset():
    return sw.wrap(list(range(200))).map(opened)
"""
SOUND = {"protocol": 2, "nonce": "x"}


def frame(kind: int, body: Any, arrays: Any = (), **lengths: int) -> bytes:
    data = (
        body if isinstance(body, bytes) else json.dumps({"arrays": arrays, "body": body}).encode()
    )
    header, payload = lengths.get("header", len(data)), lengths.get("payload", 0)
    return _PREFIX.pack(b"SWB1", kind, lengths.get("number", 0), header, 0, payload) + data


# What strangers send and then wait: nothing, a half prefix, header or handshake, and noise.
STALLED = [b"", b"SWB1", frame(1, b"[", header=60_000), b"\x16\x03\x01\x02\x00\x01", b"SWU1",
           random.Random(0).randbytes(5_000), frame(1, SOUND)]  # fmt: skip


def strangers(stack: ExitStack, address: str, count: int) -> list[socket.socket]:
    """Open this many connections, which say something of `STALLED` and stay."""
    found = []
    for number in range(count):
        sock = stack.enter_context(socket.create_connection(host_and_port(address), timeout=60))
        with suppress(OSError):  # the server has hung up already
            sock.sendall(STALLED[number % len(STALLED)])
        found.append(sock)
    return found


def _check_flood(tmp_path: Path, *, limit: int, count: int) -> None:
    path = tmp_path / "served.py"
    path.write_text(_SERVED.replace("MOST", str(limit)))
    data, token = module_of(path).dataset(), tmp_path / "token"
    make_token(token)
    with (
        BatchServers(path, 1, "--num-threads", 1, token_file=token) as servers,
        ExitStack() as stack,
    ):
        service = sw.service(servers.addresses, token_file=token)
        process = psutil.Process(servers.process(0).pid)
        found = stack.enter_context(loader(data, service, batch_size=2, timeout=240))
        batches, truth = iter(found), iter(loader(data, "inline", batch_size=2))
        assert_batches_equal(next(truth), next(batches))
        num_threads = process.num_threads()
        for _ in range(8):
            strangers(stack, servers.addresses[0], count // 8)
            assert process.num_threads() <= num_threads
            assert process.num_fds() < limit * 2 // 3
            for _ in range(8):
                assert_batches_equal(next(truth), next(batches))
        # A trainer that comes now is served, and so is one after they have left.
        check_epoch(data, service, batch_size=50, timeout=240)
        stack.close()
        check_epoch(data, service, batch_size=50, timeout=240, seed=1)


def test_connections_that_never_greet_leave_a_server_its_files_and_threads(tmp_path: Path) -> None:
    _check_flood(tmp_path, limit=128, count=240)


@pytest.mark.long
def test_ten_thousand_connections_that_never_greet_change_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 11_000:
        skip_or_fail("needs 11,000 open files: raise the hard limit, ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        _check_flood(tmp_path, limit=1_024, count=10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_the_oldest_stranger_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "_MAX_PEERS", 4)
    monkeypatch.setattr(reception, "_LEAST_S", 0.0)
    with serving(sw.wrap([1, 2])) as [server], ExitStack() as stack:
        where = host_and_port(server.address)
        found = [stack.enter_context(socket.create_connection(where)) for _ in range(9)]
        wait_for(lambda: [_is_open(sock) for sock in found] == [False] * 5 + [True] * 4)
        check_epoch(sw.wrap([1, 2]), sw.service(server.address), batch_size=1)


@pytest.fixture
def dead_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that end threads."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(repr(args.exc_value)))
    return found


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "files"), OSError(errno.ENFILE, "files"), MemoryError("none"),
              RuntimeError("can't start new thread")],
)  # fmt: skip
def test_what_the_system_refuses_ends_no_accepting(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dead_threads: list[str],
) -> None:
    num_left = 3
    kind, name = (
        (threading.Thread, "start") if type(error) is RuntimeError else (TcpListener, "accept")
    )
    real = getattr(kind, name)

    def refused(self: Any) -> Any:
        nonlocal num_left
        if getattr(self, "name", "shardwise_client") == "shardwise_client" and num_left:
            num_left -= 1
            raise error
        return real(self)

    with serving(sw.wrap(list(range(20)))) as [server]:
        monkeypatch.setattr(kind, name, refused)
        check_epoch(sw.wrap(list(range(20))), sw.service(server.address), timeout=60)
    assert not num_left
    assert not dead_threads
    assert str(error.args[-1]) in caplog.text


def test_a_client_too_many_gets_in_when_another_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reception, "_MAX_CLIENTS", 1)
    data = sw.wrap(list(range(20)))
    with serving(data) as [server]:
        first = loader(data, sw.service(server.address), batch_size=2)
        next(iter(first))
        second = loader(data, sw.service(server.address), batch_size=2, timeout=60)
        closing = threading.Thread(
            target=lambda: (wait_for(lambda: "has to come again" in caplog.text), first.close())
        )
        closing.start()
        assert len(list(second)) == 10
        closing.join()
        second.close()


def test_a_stalled_handshake_keeps_no_client_of_tls_waiting(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    data = sw.wrap(list(range(20)))
    with (
        serving(data, files=TlsFiles(str(authority.certificate("server")))) as [server],
        ExitStack() as stack,
    ):
        strangers(stack, server.address, 14)
        check_epoch(data, sw.service(server.address, tls_ca=authority.ca), timeout=60)


def num_made(server: BatchServer) -> int:
    return sum(answer.done() for answer in list(server.cache._answers.values()))


def test_a_client_that_reads_no_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CREDITS", 2)
    data = sw.wrap([np.zeros(8 << 20, np.uint8)] * 12)
    with serving(data) as [server]:
        builder = BatchBuilder(data)
        side = ClientSide(VersionWord.of(data), builder_options(builder), bytes, False, None)
        connection = TcpConnection(socket.create_connection(host_and_port(server.address)))
        greet(connection, side)
        for number in range(12):
            request = BatchRequest(0, 0, np.array([number]))
            write(connection, Kind.REQUEST, number, encode_request(request))
            wait_for(lambda n=number: num_made(server) > n or not server._connections)
            if not server._connections:
                break
        connection.close()
        assert num_made(server) < 10


def test_refusals_beyond_a_few_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    with serving(sw.wrap([1, 2])) as [server]:
        for number in range(20):
            word = {"release": f"{number}", "fingerprint": "x", "recipe": "x"}
            proof = {"proof": None, "word": word, "options": {}, "digest": None, "python": "3.11"}
            with socket.create_connection(host_and_port(server.address), timeout=60) as sock:
                sock.sendall(frame(1, SOUND))
                assert sock.recv(4_096)
                sock.sendall(frame(3, proof))
                assert b"has other release" in sock.recv(4_096)
        refusals = [each for each in caplog.records if "was refused" in each.getMessage()]
        # A slow machine may take seconds for all of them.
        assert 1 <= len(refusals) <= 9 + refusals[-1].created - refusals[0].created


def _greetings(seed: int) -> Iterator[list[bytes]]:
    """Hellos and proofs that are not well-formed."""
    hellos = [
        frame(1, SOUND, [["<i8", [0, 2**70]]]), frame(1, SOUND, [["(2,", [1]]]),
        frame(1, SOUND, [["|S9999999999999", [0]]]), frame(1, SOUND, "abc"),
        frame(1, SOUND, [["<i8", [0] * 32]]), frame(1, SOUND, [["i4," * 9_000, [0]]]),
        frame(1, {**SOUND, "nonce": "\ud800"}), frame(1, b"[1]"), frame(1, b"9" * 60_000),
        frame(1, b"[" * 60_000), frame(7, {}), frame(1, b"x", payload=2**63),
        frame(6, {"reason": "\x1b[31m"}), frame(1, None, number=2**64 - 1),
    ]  # fmt: skip
    yield from ([each] for each in hellos)
    sound: dict[str, Any] = {"proof": "0" * 64, "endpoint": "", "word": {}, "options": {},
                             "digest": None, "python": "3.11"}  # fmt: skip
    word = {"release": "1", "fingerprint": "\x1b[2J", "recipe": "x"}
    for change in ({}, {"proof": None}, {"proof": ["x"]}, {"proof": "\ud800"}, {"endpoint": "zz"},
                   {"endpoint": 5}, {"word": word}, {"word": [1]}, {"digest": [1]},
                   {"word": word, "options": {"seed": 10**30}}):  # fmt: skip
        yield [frame(1, SOUND), frame(3, {**sound, **change})]
    rng = random.Random(seed)
    for _ in range(60):
        data = bytearray(rng.choice([*hellos, frame(1, SOUND)]))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield [bytes(data)]


@pytest.mark.parametrize("has_token", [False, True])
def test_greetings_that_are_not_well_formed_end_their_connection_alone(
    has_token: bool, tmp_path: Path, dead_threads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    data, token = sw.wrap(list(range(20))), tmp_path / "token"
    make_token(token)
    file = token if has_token else None
    with serving(data, token_file=file) as [server]:
        for parts in _greetings(5):
            with socket.create_connection(host_and_port(server.address), timeout=60) as sock:
                with suppress(OSError):
                    for number, part in enumerate(parts):
                        sock.sendall(part)
                        if number < len(parts) - 1:
                            assert sock.recv(4_096)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4_096):
                        pass
        check_epoch(data, sw.service(server.address, token_file=file), timeout=60)
    assert not dead_threads
    assert "\x1b" not in caplog.text
