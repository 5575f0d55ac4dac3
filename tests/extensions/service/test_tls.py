"""Servers of `tls://`: the same batches, encrypted; whoever is not trusted is told why."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.extensions.service.executor import ServiceExecutor
from shardwise.extensions.service.tls import TlsConnection, TlsFiles, TlsListener, connect
from shardwise.extensions.service.transports import connect_to
from shardwise.testing import assert_batches_equal, check_executor
from tests.support import batch_servers
from tests.support.batch_servers import BatchServers, loader, module_of, write_dataset
from tests.support.certificates import Authority
from tests.support.commands import run
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

SIZE = 60


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def listener(authority: Authority) -> Iterator[TlsListener]:
    with closing(TlsListener("127.0.0.1", 0, TlsFiles(str(authority.certificate("server"))))) as it:
        yield it


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """80 kB: several records of TLS."""
    return {**sample, "noise": rng.random((100, 100))}


def dataset() -> sw.Dataset:
    return sw.wrap(list(range(SIZE))).map(noisy)


@contextmanager
def serving(cert: Path | None, ca: Path | None = None) -> Iterator[str]:
    """A server of `dataset()`; its address."""
    files = None if cert is None else TlsFiles(str(cert), ca=ca and str(ca))
    with batch_servers.serving(dataset(), files=files) as [server]:
        yield server.address


def check_epoch(service: Any, **options: Any) -> None:
    batch_servers.check_epoch(dataset(), service, **options)


def refused(service: Any) -> str:
    """The error that a trainer gets at its first batch."""
    waiting = loader(dataset(), service, timeout=60)
    with waiting as found, pytest.raises(sw.ServiceError) as caught:
        next(iter(found))
    return str(caught.value)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_record_that_was_changed_on_the_way_ends_the_connection_as_a_network_error(
    authority: Authority, listener: TlsListener
) -> None:
    """Also at a client, which gets the server's alert: after the greeting that is no refusal."""

    def serve() -> None:
        connection = listener.accept()
        connection.limit(60)
        connection.send([b"ok"])
        with suppress(OSError):
            connection.receive_into(memoryview(bytearray(1)))
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        client = connect(listener.address, TlsFiles(ca=str(authority.ca)), timeout_s=60)
        client.receive_into(memoryview(bytearray(2)))
        record = b"\x17\x03\x03\x00\x20" + bytes(32)
        assert socket.socket.send(client._sock, record) == len(record)
        with pytest.raises(OSError, match=r"ALERT|alert"):
            client.receive_into(memoryview(bytearray(1)))
        client.close()
        served.result(60)


def test_a_client_that_resets_its_connection_at_once_is_passed_over(
    authority: Authority, listener: TlsListener
) -> None:
    where = ("127.0.0.1", port_of(listener.address))
    for data in (b"", b"x"):
        with socket.create_connection(where) as reset:
            reset.send(data)
            # A reset in place of an end.
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    received = bytearray(2)

    def send() -> None:
        with suppress(OSError):  # of a listener that was closed
            files = TlsFiles(ca=str(authority.ca))
            connection = connect(listener.address, files, timeout_s=60)
            connection.send([b"ok"])
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(send)
        while not any(received):
            connection = listener.accept()
            connection.limit(60)
            # One whose reset arrives late was accepted, and has an error of its own.
            with suppress(OSError, EOFError):
                connection.receive_into(memoryview(received))
            connection.close()
    assert received == b"ok"


def test_it_conforms(authority: Authority) -> None:
    cert = authority.certificate("server")
    with serving(cert) as one, serving(cert) as other:
        assert one.startswith("tls://127.0.0.1:")
        tls = TlsFiles(ca=str(authority.ca))
        check_executor(
            lambda builder: ServiceExecutor(
                builder, (one, other), connect=connect_to((one, other), files=tls)
            ),
            BatchBuilder(dataset(), seed=3),
        )


@pytest.mark.parametrize("is_mutual", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_killed_server_of_the_command_loses_and_doubles_nothing(
    tmp_path: Path, authority: Authority, is_mutual: bool
) -> None:
    path = write_dataset(tmp_path, size=240)
    data = module_of(path).dataset()
    options = ["--tls-cert", authority.certificate("server")]
    options += ["--tls-ca", authority.ca] if is_mutual else []
    mine = authority.certificate("trainer") if is_mutual else None
    with BatchServers(path, 2, *options) as servers:
        assert servers.addresses[0].startswith("tls://")
        service = sw.service(servers.addresses, tls_ca=authority.ca, tls_cert=mine)
        with loader(data, service, batch_size=4, shuffle=True) as found:
            truth = loader(data, "inline", batch_size=4, shuffle=True)
            for step, (batch, wanted) in enumerate(zip(found, truth, strict=True)):
                assert_batches_equal(wanted, batch)
                if step == 10:
                    servers.kill(0)


def test_broken_connections_lose_and_double_nothing(authority: Authority) -> None:
    with serving(authority.certificate("server")) as address, TcpProxy(port_of(address)) as proxy:
        # Up to the third batch; the handshake is 1.5 kB.
        proxy.breaks, proxy.most_bytes = 4, 2_000_000
        way = f"tls://127.0.0.1:{proxy.port}"
        for seed in range(2):
            check_epoch(sw.service(way, tls_ca=authority.ca), seed=seed)
        assert proxy.num_broken > 0


def test_an_expired_certificate_asks_for_a_new_one(tmp_path: Path, authority: Authority) -> None:
    old = authority.certificate("server", valid_hours=-1)
    with serving(old) as address:
        text = refused(sw.service(address, tls_ca=authority.ca))
    assert "certificate has expired; make a new certificate" in text
    assert "tls_ca=" not in text


def test_who_is_not_trusted_is_told_why(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")
    cert = authority.certificate("server")
    with serving(cert) as address:
        text = refused(sw.service(address, tls_ca=other.ca))
        assert f"{address}: TLS does not trust the server '127.0.0.1'" in text
        assert "tls_ca=" in text
        # The system's authorities did not sign it either.
        assert "TLS does not trust the server" in refused(sw.service(address))
        wait_for(lambda: "a client was refused: the TLS handshake failed" in caplog.text)
        check_epoch(sw.service(address, tls_ca=authority.ca))
    with serving(authority.certificate("elsewhere", "b.example")) as address:
        text = refused(sw.service(address, tls_ca=authority.ca))
        assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in text
        assert "use a name of the certificate's subjectAltName" in text
    caplog.clear()
    with serving(cert, ca=authority.ca) as address:
        for mine in (None, other.certificate("stranger")):
            text = refused(sw.service(address, tls_ca=authority.ca, tls_cert=mine))
            assert "the server refused TLS" in text
            assert "tls_cert=" in text
        wait_for(lambda: "TLS does not trust the client" in caplog.text)
        mine = authority.certificate("trainer")
        check_epoch(sw.service(address, tls_ca=authority.ca, tls_cert=mine))


def test_a_client_without_tls_and_one_with_it_are_told_by_both_ends(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(authority.certificate("server")) as address:
        plain = address.replace("tls://", "tcp://")
        for _ in range(20):
            assert "the server speaks TLS: name it as tls://" in refused(sw.service(plain))
        wait_for(lambda: "the TLS handshake failed: wrong version" in caplog.text)
        check_epoch(sw.service(address, tls_ca=authority.ca))
    with serving(None) as address:
        encrypted = address.replace("tcp://", "tls://")
        for _ in range(20):
            text = refused(sw.service(encrypted, tls_ca=authority.ca))
            assert "without --tls-cert is named as tcp://" in text
        wait_for(lambda: "a client was refused: it speaks TLS" in caplog.text)
        check_epoch(sw.service(address))


def test_garbage_on_the_port_changes_nothing(authority: Authority) -> None:
    garbage = [b"", b"\0" * 100, os.urandom(5_000), b"GET / HTTP/1.1\r\n\r\n",
               b"\x16\x03\x01\x02\x00" + b"\1" * 512, b"\x16\x03\x01\x40\x00",
               b"\x15\x03\x03"]  # fmt: skip
    with serving(authority.certificate("server")) as address:
        for each in garbage:
            with socket.create_connection(("127.0.0.1", port_of(address))) as sock:
                sock.settimeout(60)
                with suppress(OSError):
                    sock.sendall(each)
                    sock.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while sock.recv(4_096):
                        pass
        check_epoch(sw.service(address, tls_ca=authority.ca))


def test_both_directions_at_once_and_an_end_that_wakes_who_waits(
    authority: Authority, listener: TlsListener
) -> None:
    def accept() -> TlsConnection:
        accepted = listener.accept()
        accepted.shake_hands()
        return accepted

    with ThreadPoolExecutor(4) as pool:
        accepting = pool.submit(accept)
        client = connect(listener.address, TlsFiles(ca=str(authority.ca)), timeout_s=60)
        server = accepting.result(60)
        rng = np.random.default_rng(0)
        sent = [rng.integers(0, 256, size, dtype=np.uint8) for size in (1, 0, 70_000, 9_000_000)]
        places = [np.zeros(sum(map(len, sent)), dtype=np.uint8) for _ in range(2)]
        moves = [pool.submit(each.send, [part.data for part in sent]) for each in (client, server)]
        for end, place in zip((client, server), places, strict=True):
            moves.append(pool.submit(end.receive_into, place.data))
        for move in moves:
            move.result(120)
        assert all(place.tobytes() == np.concatenate(sent).tobytes() for place in places)
        client.limit(0.05)
        with pytest.raises(TimeoutError):
            client.receive_into(memoryview(bytearray(1)))
        client.limit(None)
        waiting = pool.submit(client.receive_into, memoryview(bytearray(1)))
        client.close()
        with pytest.raises((OSError, EOFError)):
            waiting.result(60)
        with pytest.raises(EOFError):
            server.receive_into(memoryview(bytearray(1)))
        server.close()


def test_the_commands_of_the_page_make_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "service.md"
    monkeypatch.chdir(tmp_path)
    lines = page.read_text().splitlines()
    commands = [shlex.split(line[2:]) for line in lines if line.startswith("$ openssl")]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    files = TlsFiles("server.pem", "server.key")
    with batch_servers.serving(dataset(), files=files) as [server]:
        for address in (server.address, server.address.replace("127.0.0.1", "localhost")):
            check_epoch(sw.service(address, tls_ca="ca.pem"))


def test_files_that_can_not_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    cert, other = authority.certificate("server"), authority.certificate("other")
    locked = authority.certificate("locked", password=b"secret")
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for files in (TlsFiles(str(bad)), TlsFiles(str(cert), str(other)), TlsFiles(str(locked)),
                  TlsFiles(str(cert), ca=str(bad)), TlsFiles(str(tmp_path / "none"))):  # fmt: skip
        with pytest.raises(sw.ServiceError, match=r"TLS can't use '.*(bad|server|locked|none)"):
            files.context(is_server=True)
    with pytest.raises(sw.ServiceError, match=r"bad\.pem"):
        loader(dataset(), sw.service("tls://a:1", tls_ca=bad))
    result = run("serve", "a:b", "--port", "0", "--tls-ca", str(bad), exit_code=2)
    assert "go with --tls-cert" in result.stderr
    data = write_dataset(tmp_path, size=3)
    result = run("serve", f"{data}:dataset", "--port", "0", "--tls-cert", str(bad), exit_code=1)
    assert "bad.pem" in result.stderr
    with pytest.raises(ValueError, match="there is none"):
        sw.service("tcp://a:1", tls_ca=authority.ca)
