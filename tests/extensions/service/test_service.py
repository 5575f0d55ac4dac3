"""The executor of batch servers, over real connections: conformance, faults, refusals, sharing."""

from __future__ import annotations

import importlib
import json
import logging
import random
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service import dispatcher, greeting, reception, tcp
from shardwise.extensions.service.addresses import host_and_port
from shardwise.extensions.service.executor import ServiceExecutor
from shardwise.extensions.service.frames import _PREFIX
from shardwise.extensions.service.token import make_token
from shardwise.extensions.service.version import VersionWord
from shardwise.testing import assert_batches_equal, check_executor
from tests.support.batch_servers import (
    BatchServers,
    addresses,
    check_epoch,
    loader,
    module_of,
    serving,
    write_dataset,
)
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.server_process import free_port
from tests.support.tcp_proxy import TcpProxy
from tests.support.transports import TRANSPORTS, Transport, token_for, use_transport
from tests.support.waiting import wait_for
from tests.support.web import running

ROOT = Path(__file__).resolve().parents[3]
SIZE = 120


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """All kinds of values."""
    noise = rng.random((3, 5))
    return {
        **sample, "noise": noise, "half": np.float16(noise[0, 0]), "pair": (1, "\ud800", None),
        "nested": {"a": [b"x", 2.5, float("inf")], 3: True}, "ragged": noise[: rng.integers(1, 4)],
 "day": np.datetime64("2026-01-02"),
    }  # fmt: skip


def large(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """All kinds of values, and one that UCX sends by itself: 80 kB."""
    return {**noisy(sample, rng), "picture": rng.random((100, 100))}


def refusing(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["txt"] == b"text 33":
        raise ValueError("no such text")
    return sample


def dataset(**options: Any) -> sw.Dataset:
    return sw.Dataset(MemorySource(numbered_samples(SIZE), [40, 30, 50], **options))


@pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
def test_it_conforms_over_every_transport(transport: Transport) -> None:
    scheme, token = transport.scheme, transport.token_file
    data = dataset().map(large)
    with serving(data, data, num_threads=2, scheme=scheme, token_file=token) as servers:
        assert servers[0].address.startswith(f"{scheme}://127.0.0.1:")
        check_executor(
            lambda builder: ServiceExecutor(
                builder, tuple(addresses(servers)), token_file=token and str(token)
            ),
            BatchBuilder(data, seed=3, ragged="list"),
        )


class ServedExecutor(ServiceExecutor):
    """Has a server of its builder's dataset, in this process."""

    servers = ExitStack()

    def __init__(self, builder: BatchBuilder) -> None:
        servers = self.servers.enter_context(serving(builder.dataset, num_threads=2))
        super().__init__(builder, tuple(addresses(servers)), timeout=60)


def test_it_keeps_the_contract_of_executors() -> None:
    with ServedExecutor.servers:
        check_executor(ServedExecutor)


def test_padded_batches_are_those_of_the_inline_executor() -> None:
    data = dataset().select("bin").decode(bin=sw.array("<i8"))
    with serving(data) as servers:
        check_epoch(data, sw.service(addresses(servers)), ragged="pad")


def test_all_options_of_a_loader_reach_the_server() -> None:
    data = dataset().map(refusing).map(noisy)
    with serving(data) as servers:
        for options in (
            {"on_error": "skip"},
            {"on_error": "replace", "seed": 9},
            {"on_error": "skip", "remainder": "pad", "batch_size": 7},
        ):
            check_epoch(data, sw.service(addresses(servers)), **options)


def test_coalesced_batches_and_tensors() -> None:
    torch = pytest.importorskip("torch")
    data = dataset().select("txt")
    with serving(data) as servers:
        check_epoch(data, sw.service(addresses(servers)), batch_size=2)
    tensors = dataset().map(_tensor)
    with serving(tensors) as servers:
        with loader(tensors, sw.service(addresses(servers)), batch_size=2) as found:
            batch = next(iter(found))
    assert all(isinstance(value, torch.Tensor) for value in batch["t"])
    assert [value.shape[0] for value in batch["t"]] == [0, 1]
    assert batch["t"][1].dtype == torch.bfloat16
    assert batch["t"][1].tolist() == [[1.0, 1.0]]


def _tensor(sample: dict[str, Any]) -> dict[str, Any]:
    import torch

    number = int(sample["cls"])
    return {
        "__key__": sample["__key__"],
        "t": torch.full((number, 2), number, dtype=torch.bfloat16),
    }


def test_an_error_at_a_server_is_the_librarys_own_with_shard_and_key() -> None:
    data = dataset().map(refusing)
    with serving(data) as servers:
        with loader(data, sw.service(addresses(servers))) as found:
            taken = []
            with pytest.raises(sw.DataError) as caught:
                for batch in found:
                    taken.append(batch)
    assert len(taken) == 4, "the error comes in its batch's place"
    with pytest.raises(sw.DataError) as wanted:
        list(loader(data, "inline"))
    assert str(caught.value) == str(wanted.value)
    assert (caught.value.key, caught.value.index) == ("key-00033", 33)
    assert caught.value.url is not None
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert "refusing" in "".join(cause.__notes__)
    assert servers[0].address in "".join(cause.__notes__)


def test_what_can_not_travel_is_named() -> None:
    data = dataset().map(_odd)
    with serving(data) as servers:
        with pytest.raises(TypeError, match=r"'odd' has a .*Path"):
            next(iter(loader(data, sw.service(addresses(servers)))))


def _odd(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "odd": Path("x")}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: sw.Dataset(MemorySource(numbered_samples(SIZE), name="other")), "other data"),
        (lambda: dataset().decode(cls=int), "other decoders or transforms"),
        (lambda: dataset().map(refusing), "other decoders or transforms"),
    ],
)
def test_a_server_of_other_data_or_code_is_refused(other: Any, what: str) -> None:
    theirs, mine = other(), dataset()
    with serving(theirs) as servers:
        with pytest.raises(sw.ServiceError, match=what) as caught:
            next(iter(loader(mine, sw.service(addresses(servers)))))
    assert servers[0].address in str(caught.value)
    if what == "other data":
        assert theirs.fingerprint in str(caught.value)
        assert mine.fingerprint in str(caught.value)


def test_a_server_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset()
    with serving(data) as servers:
        # The server has made its word; the client makes one now.
        here = VersionWord.release_here()
        monkeypatch.setattr(VersionWord, "release_here", staticmethod(lambda: "0.0.1"))
        with pytest.raises(sw.ServiceError, match="release") as caught:
            next(iter(loader(data, sw.service(addresses(servers)))))
    assert here in str(caught.value)
    assert "0.0.1" in str(caught.value)


def test_a_server_of_another_python_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = greeting.PYTHON
    # What the client says; the server compares with what it imported itself.
    monkeypatch.setattr(greeting, "PYTHON", "3.99")
    with serving(dataset().map(refusing)) as servers:
        with pytest.raises(sw.ServiceError, match=f"runs Python {here}, the client 3.99"):
            next(iter(loader(dataset(), sw.service(addresses(servers)))))
    # Where no function is the user's, bytecode does not count.
    with serving(dataset()) as servers:
        assert len(list(loader(dataset(), sw.service(addresses(servers))))) == 15


def test_a_wrong_server_beside_a_right_one_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = dataset()
    with serving(data) as right:
        port = free_port()
        service = sw.service([right[0].address, f"tcp://127.0.0.1:{port}"])
        with loader(data, service) as found:
            batches = iter(found)
            next(batches)
            with serving(dataset().map(refusing), port=port):
                wait_for(lambda: "is not used" in caplog.text)
                for _ in batches:
                    pass
            counts = found.stats()["service"]["servers"]
    assert counts[f"tcp://127.0.0.1:{port}"]["answers"] == 0


_MODULE = """
from helpers_of_test import scale
def scaled(sample):
    return {**sample, "twice": scale(sample["value"])}
def collated(samples):
    return [sample["twice"] for sample in samples]
"""


def test_other_code_of_a_module_at_a_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"here": (2, _MODULE), "there": (3, _MODULE.replace("[sample", "[1 + sample"))}
    for place, (factor, text) in changes.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "module_of_test.py").write_text(text)
        helper = f"def scale(x):\n    return x * {factor}\n"
        (tmp_path / place / "helpers_of_test.py").write_text(helper)
    token = tmp_path / "token"
    make_token(token)
    for name in ("module_of_test", "helpers_of_test"):
        monkeypatch.setitem(sys.modules, name, sys)  # undone at the end
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    module = importlib.import_module("module_of_test")
    mapped = sw.wrap(list(range(40))).map(module.scaled)
    plain = sw.wrap([{"twice": n} for n in range(40)])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    with BatchServers(None, 1, "--token-file", token) as servers:
        service = sw.service(servers.addresses, token_file=token)
        # Of the function that is mapped only the helper differs.
        with pytest.raises(sw.ServiceError, match="other decoders or transforms"):
            next(iter(loader(mapped, service)))
        with pytest.raises(sw.ServiceError, match="other code of the collate function"):
            next(iter(loader(plain, service, collate=module.collated)))
        assert len(list(loader(plain, service))) == 5


def test_datasets_travel_under_the_jobs_token_only(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    data = dataset().map(lambda sample: {**sample, "twice": 2 * int(sample["cls"])})
    for path in (right, wrong):
        make_token(path)
    with serving(None, token_file=right) as servers:
        service = sw.service(addresses(servers), token_file=right)
        check_epoch(data, service)
        # A collate of the user's goes with the dataset.
        with loader(data, service, collate=len, batch_size=50, remainder="uneven") as found:
            assert list(found) == [50, 50, 20]
        for executor, message in (
            (sw.service(addresses(servers), token_file=wrong), "another token"),
            (sw.service(addresses(servers)), "asks for a token"),
        ):
            with pytest.raises(sw.ServiceError, match=message):
                next(iter(loader(data, executor)))
    with serving(data) as servers:
        with pytest.raises(sw.ServiceError, match="under a token only"):
            next(iter(loader(data, sw.service(addresses(servers)), collate=len)))
        with pytest.raises(sw.ServiceError, match="the server has no token"):
            next(iter(loader(data, sw.service(addresses(servers), token_file=right))))
    right.chmod(0o644)
    with pytest.raises(sw.ServiceError, match="chmod 600"):
        next(iter(loader(data, sw.service("tcp://127.0.0.1:9", token_file=right))))
    with pytest.raises(sw.ServiceError, match="can't be read"):
        next(iter(loader(data, sw.service("tcp://127.0.0.1:9", token_file=tmp_path / "none"))))


@pytest.mark.parametrize("transport", ["tcp", "ucx"], indirect=True)
def test_garbage_on_the_port_changes_nothing(transport: Transport) -> None:
    scheme, token = transport.scheme, transport.token_file
    data = dataset().map(large)
    segment = struct.Struct("<4sIQ")
    prefix = struct.Struct("<4sB3xQIIQ")
    bomb = json.dumps({"arrays": [["|u1", [1 << 62]]], "body": {}}).encode()
    garbage = [
        b"", b"\0" * 100, random.Random(0).randbytes(5_000), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        prefix.pack(b"SWB1", 1, 0, 1 << 31, 0, 0), prefix.pack(b"SWB1", 7, 0, 2, 0, 1 << 60),
        prefix.pack(b"SWB1", 1, 0, 2, 0, 0) + b"[]", prefix.pack(b"SWB1", 1, 0, 1, 0, 0) + b"{",
        prefix.pack(b"SWB1", 4, 0, len(bomb), 0, 0) + bomb,
        prefix.pack(b"SWB1", 1, 0, 60_000, 0, 0) + b"[" * 60_000,
        # As a client of ucx:// begins; then a segment of no kind, one that is endless, and a frame.
        segment.pack(b"SWU1", 1, 3) + b"abc" + b"\0" * 100, segment.pack(b"SWU1", 9, 5),
        segment.pack(b"SWU1", 2, 1 << 20), segment.pack(b"SWU1", 3, 0) * 2,
        segment.pack(b"SWU1", 1, 1 << 63) + b"SWB1",
    ]  # fmt: skip
    with serving(data, scheme=scheme, token_file=token) as servers:
        port = int(servers[0].address.rpartition(":")[2])
        with loader(data, sw.service(addresses(servers), token_file=token)) as found:
            assert len(garbage) <= SIZE // 8
            for step, wanted in enumerate(loader(data, "inline")):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.settimeout(60)
                    with suppress(OSError):  # it hangs up as soon as it has seen enough
                        sock.sendall(garbage[step % len(garbage)])
                        sock.shutdown(socket.SHUT_WR)
                    while _received(sock):
                        pass
                if not step:
                    batches = iter(found)
                assert_batches_equal(wanted, next(batches))


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4_096)
    except ConnectionError:
        return b""


def test_a_peer_that_sends_a_byte_now_and_then_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reception, "_GREETING_S", 0.5)
    with (
        serving(dataset()) as servers,
        socket.create_connection(host_and_port(servers[0].address)) as sock,
    ):
        sock.settimeout(0.05)
        sock.sendall(_PREFIX.pack(b"SWB1", 1, 0, 60_000, 0, 0))

        def is_over() -> bool:
            try:
                sock.sendall(b"[")
                return not sock.recv(1)
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for(is_over)
        check_epoch(dataset(), sw.service(servers[0].address))


@pytest.mark.parametrize("transport", ["tcp", "ucx"], indirect=True)
def test_a_port_that_is_no_batch_server_is_named(transport: Transport) -> None:
    scheme, token = transport.scheme, transport.token_file
    other = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Ssh)
    address = f"{scheme}://127.0.0.1:{other.server_address[1]}"
    with running(other):
        with pytest.raises(sw.ServiceError, match=f"{address}.*another program's port"):
            next(iter(loader(dataset(), sw.service(address, token_file=token), timeout=60)))


class _Ssh(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(4_096)  # what is unread would reset the connection
            self.request.sendall(b"SSH-2.0-OpenSSH\r\n")


@pytest.mark.parametrize(
    ("speaks", "named", "text"),
    [
        ("tcp", "ucx", "was started without --transport ucx: name it as tcp://host:port"),
        ("ucx", "tcp", "was started with --transport ucx: name it as ucx://host:port"),
    ],
)
def test_a_server_that_is_named_as_one_of_another_transport_is_refused_at_both_ends(
    speaks: str,
    named: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_transport("ucx", monkeypatch)
    token = token_for("ucx", tmp_path)
    with serving(dataset(), scheme=speaks, token_file=token) as servers:
        right = addresses(servers)[0]
        service = sw.service(right.replace(speaks, named, 1), token_file=token)
        for _ in range(5):  # a reset must not overtake the answer
            with (
                loader(dataset(), service, timeout=60) as one,
                pytest.raises(sw.ServiceError, match=text),
            ):
                next(iter(one))
        check_epoch(dataset(), sw.service(right, token_file=token))
        wait_for(lambda: f"a client was refused: it speaks {named.upper()}" in caplog.text)


@pytest.mark.parametrize(
    "transport",
    ["tcp", pytest.param("ucx", marks=pytest.mark.long), "ucx-between-machines"],
    indirect=True,
)
def test_broken_connections_lose_and_double_nothing(transport: Transport) -> None:
    scheme, token = transport.scheme, transport.token_file
    data = dataset().map(noisy if scheme == "tcp" else large)
    with (
        serving(data, data, scheme=scheme, token_file=token) as servers,
        ExitStack() as stack,
    ):
        ports = [int(each.rpartition(":")[2]) for each in addresses(servers)]
        proxies = [stack.enter_context(TcpProxy(port, seed=n)) for n, port in enumerate(ports)]
        for proxy in proxies:
            proxy.breaks, proxy.most_bytes = 6, 30_000
        ways = [f"{scheme}://127.0.0.1:{proxy.port}" for proxy in proxies]
        service = sw.service(ways, token_file=token)
        for seed in range(3):
            counts = check_epoch(data, service, batch_size=3, seed=seed)
            assert counts["servers"]
        assert sum(proxy.num_broken for proxy in proxies) > 2


def test_a_work_that_ends_two_connections_is_made_here() -> None:
    data = dataset()
    with serving(data) as servers, TcpProxy(int(servers[0].address.rpartition(":")[2])) as proxy:
        # After the greeting's 400 bytes, in the middle of a batch of 400 kB.
        proxy.breaks, proxy.most_bytes = 2, 300_000
        builder = BatchBuilder(data)
        executor = ServiceExecutor(builder, (f"tcp://127.0.0.1:{proxy.port}",), timeout=60)
        ids = np.arange(4_000, dtype=np.int64) % SIZE
        [batch] = executor.run(iter([BatchRequest(0, 0, ids)]))
        assert executor.service_stats()["made_here"] == 1
        executor.close()
    assert_batches_equal(builder.build(BatchRequest(0, 0, ids)).data, batch.data)


def test_with_all_servers_dead_it_waits_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_dataset(tmp_path)
    data = module_of(path).dataset()
    with BatchServers(path, 1) as servers:
        with loader(data, sw.service(servers.addresses), shuffle=True) as found:
            batches, truth = iter(found), iter(loader(data, "inline", shuffle=True))
            assert_batches_equal(next(truth), next(batches))
            # Only now: while it connects it may have no server for as long.
            monkeypatch.setattr(dispatcher, "_SAY_S", 0.5)
            servers.kill(0)
            # The kernel ends a server with the thread that started it.
            is_over = threading.Event()

            def start_again() -> None:
                wait_for(lambda: "no batch server answers, waiting" in caplog.text)
                servers.start(0)
                is_over.wait(120)

            thread = threading.Thread(target=start_again)
            thread.start()
            for wanted in truth:
                assert_batches_equal(wanted, next(batches))
            assert found.stats()["service"]["made_here"] == 0
            is_over.set()
            thread.join()
    assert servers.addresses[0] in caplog.text
    assert f"batch server {servers.addresses[0]} answers" in caplog.text


_CLIENT = """
import sys
from pathlib import Path
import shardwise as sw
from tests.support.batch_servers import module_of
data, service = module_of(Path(sys.argv[1])).dataset(), sw.service(sys.argv[2])
batches = iter(sw.DataLoader(data, batch_size=2, executor=service, rank=0, world_size=1))
next(batches)
print("a batch", flush=True)
sys.stdin.read()
"""


def test_a_server_whose_client_was_killed_is_idle_and_so_ends_with_its_job(tmp_path: Path) -> None:
    path = write_dataset(tmp_path)
    with serving(module_of(path).dataset()) as servers:
        command = [sys.executable, "-c", _CLIENT, str(path), servers[0].address]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, cwd=ROOT) as client:
            assert client.stdout.readline() == b"a batch\n"
            assert servers[0].idle_s == 0
            client.kill()
        wait_for(lambda: servers[0].idle_s > 0)


def test_the_loaders_timeout_ends_the_wait() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    text = rf"waits for a batch server that answers, of {address} .*refused"
    with pytest.raises(sw.StallError, match=text):
        next(iter(loader(dataset(), sw.service(address), timeout=0.5)))


def test_with_fallback_batches_are_made_here(caplog: pytest.LogCaptureFixture) -> None:
    data = dataset().map(noisy)
    service = sw.service(f"tcp://127.0.0.1:{free_port()}", fallback=True)
    with caplog.at_level(logging.WARNING):
        counts = check_epoch(data, service)
    assert counts["made_here"] == SIZE // 8
    assert "batches are made here" in caplog.text


def test_with_fallback_a_server_that_comes_back_is_used_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = dataset().map(noisy)
    with ExitStack() as stack:
        [server] = stack.enter_context(serving(data))
        port = int(server.address.rpartition(":")[2])
        service = sw.service(server.address, fallback=True)
        with loader(data, service, batch_size=1) as found:
            batches, truth = iter(found), iter(loader(data, "inline", batch_size=1))
            assert_batches_equal(next(truth), next(batches))
            stack.close()
            is_back = False
            for wanted in truth:
                assert_batches_equal(wanted, next(batches))
                counts = found.stats()["service"]
                if counts["made_here"] and not is_back:
                    is_back = True
                    stack.enter_context(serving(data, port=port))
                    wait_for(
                        lambda: found.stats()["service"]["servers"][server.address]["is_connected"]
                    )
            assert is_back
            assert counts["made_here"] < SIZE / 2
    assert "batches are made here" in caplog.text
    assert f"batch server {server.address} answers" in caplog.text


def test_the_work_of_a_slow_server_is_hedged() -> None:
    gated, gate = MemorySource(numbered_samples(SIZE), [40, 30, 50]), threading.Event()
    read = gated.read

    def gated_read(*args: Any) -> Any:
        assert gate.wait(60)
        return read(*args)

    # Of one object: a server whose source has another class is refused.
    gated.read = gated_read  # type: ignore[method-assign]
    gate.set()
    data = dataset().map(noisy)  # samples that are only read would be coalesced
    with serving(data, sw.Dataset(gated).map(noisy)) as servers:
        with loader(data, sw.service(addresses(servers)), batch_size=2, timeout=60) as found:
            batches, truth = iter(found), iter(loader(data, "inline", batch_size=2))
            for step, wanted in enumerate(truth):
                if step == 20:
                    gate.clear()
                assert_batches_equal(wanted, next(batches))
            counts = found.stats()["service"]["servers"]
            gate.set()
    assert counts[servers[1].address]["hedges"] > 0


def test_a_trainer_that_only_waits_wants_four_times_as_many_servers() -> None:
    data = dataset().map(_slow)
    with serving(data, data) as servers:
        with loader(data, sw.service(addresses(servers))) as found:
            assert found.stats()["service"]["wanted"] == 2
            for _ in zip(range(10), found, strict=False):
                pass
            stats = found.stats()
    assert stats["bound_by"] == "transform"
    assert stats["service"]["wanted"] == 8
    assert "8 servers would keep up" in stats["verdict"]


def _slow(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.05)
    return sample


def test_trainers_in_step_share_each_batch() -> None:
    data = dataset().map(noisy)
    with serving(data) as servers:
        service = sw.service(addresses(servers))
        with loader(data, service, shuffle=True) as one, loader(data, service, shuffle=True) as two:
            for first, second in zip(one, two, strict=True):
                assert_batches_equal(first, second)
        assert servers[0].cache.num_built == SIZE // 8
        assert servers[0].cache.num_shared == SIZE // 8
        check_epoch(data, service, seed=1)
        assert servers[0].cache.num_built == 2 * SIZE // 8


class _Unplanned(MemorySource):
    """A source of a user, whose `ranges` fails at a server."""

    def ranges(self, ids: Any, fields: Any = None, **_: int) -> Any:
        if threading.current_thread().name == "shardwise_client":
            raise KeyError("no ranges")


def test_an_error_of_a_sources_ranges_reaches_each_client() -> None:
    data = sw.Dataset(_Unplanned(numbered_samples(SIZE), [SIZE]))
    with serving(data) as servers:
        for _ in range(2):
            # A batch that stayed unbuilt would keep the second client waiting.
            found = loader(data, sw.service(addresses(servers)), timeout=20)
            with found, pytest.raises(KeyError, match="no ranges"):
                next(iter(found))


def test_a_shard_is_read_by_one_server_while_it_has_credits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine any answer may be late, and would be asked of the other one, too.
    monkeypatch.setattr(dispatcher, "_LEAST_LATE_S", 600.0)
    monkeypatch.setattr(dispatcher, "_FIRST_LATE_S", 600.0)
    data = dataset()
    sources = [MemorySource(numbered_samples(SIZE), [40, 30, 50]) for _ in range(2)]
    with serving(*map(sw.Dataset, sources), num_threads=40) as servers:
        check_epoch(data, sw.service(addresses(servers)), shuffle=False, batch_size=10)
    shards = [
        {int(np.searchsorted([40, 70], ids[0], side="right")) for ids, _ in source.reads}
        for source in sources
    ]
    assert not shards[0] & shards[1]


@pytest.mark.parametrize("transport", ["tcp", "ucx"], indirect=True)
def test_a_batch_that_is_kept_is_not_overwritten(transport: Transport) -> None:
    scheme, token = transport.scheme, transport.token_file
    data = sw.wrap([np.full((300, 300), i) for i in range(40)])
    with serving(data, scheme=scheme, token_file=token) as servers:
        service = sw.service(addresses(servers), token_file=token)
        with loader(data, service, batch_size=2) as found:
            kept = [batch["value"] for batch in found]
    assert [int(batch[0, 0, 0]) for batch in kept] == list(range(0, 40, 2))
    assert all((batch == batch[:, :1, :1]).all() for batch in kept)


def test_a_program_may_bring_its_own_function_that_connects() -> None:
    data = dataset()
    sent: list[int] = []

    def connect(address: str, *, timeout_s: float) -> tcp.TcpConnection:
        sent.append(1)
        return tcp.connect(address, timeout_s=timeout_s)

    with serving(data) as servers:
        executor = ServiceExecutor(BatchBuilder(data), tuple(addresses(servers)), connect=connect)
        assert len(list(executor.run(iter([BatchRequest(0, 0, np.arange(3))])))) == 1
        executor.close()
    assert sent == [1]


def test_servers_and_local_threads_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="num_workers=2"):
        loader(dataset(), sw.service("tcp://a:1"), num_workers=2)


@pytest.mark.parametrize("given", ["", "a", "http://a:1", "tcp://a:0", "a:1,a:1", [], "a:99999"])
def test_an_address_that_is_none_is_named(given: Any) -> None:
    with pytest.raises(ValueError, match="addresses"):
        sw.service(given)
