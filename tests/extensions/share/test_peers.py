"""Hosts that fail in any way cost a miss and a bounded wait; files of dead loaders cost nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shardwise.extensions.remote.cache import cache_of
from shardwise.extensions.remote.cache.homes import HOME, keys_of_names
from shardwise.extensions.remote.cache.usage import LoaderFile
from shardwise.extensions.service import frames
from shardwise.extensions.service.greeting import welcome
from shardwise.extensions.service.tcp import TcpListener
from shardwise.extensions.share import block_server, peers
from shardwise.extensions.share.block_server import BlockServer
from shardwise.extensions.share.peers import Peers, block_digest
from shardwise.extensions.share.sharing import _address
from shardwise.storage.byte_ranges import ByteRange
from shardwise.storage.options import CacheSettings
from tests.support.forks import in_child

NAMES = [f"{n}" * 32 + "-00000000.block" for n in range(3)]
TOKEN = "t" * 32
DATA = np.arange(100, dtype=np.uint8)
CACHE = SimpleNamespace(
    room=7, take_memory=lambda size: np.empty(size, np.uint8), spare_memory=lambda _: None
)


def block(number: int = 0, *, for_peer: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=NAMES[number], for_peer=for_peer, nodes=None)


@pytest.fixture
def asking(tmp_path: Path, monkeypatch) -> Peers:
    """A process of another node."""
    monkeypatch.setattr(peers, "_ANSWER_S", 0.3)
    monkeypatch.setattr(peers, "CONNECT_S", 0.3)
    return Peers(SimpleNamespace(settings=CacheSettings(tmp_path), folder=str(tmp_path)))


@contextmanager
def homes(
    folder: Path,
    *,
    me: int = 1,
    addresses: tuple[str, ...] = ("tcp://a:1", "tcp://b:1"),
    warm: object = -1,
) -> Iterator[LoaderFile]:
    """A loader's file: node 0 holds all blocks."""
    rows = np.zeros(len(NAMES), HOME)
    rows["key"], rows["before"], rows["warm"] = keys_of_names(NAMES), -1, warm
    facts = {"addresses": addresses, "me": me, "token": TOKEN, "warm": []}
    file = LoaderFile(str(folder), "homes", nullcontext)
    file.fill(rows.tobytes() + json.dumps(facts).encode(), 0, len(rows))
    try:
        yield file
    finally:
        file.close()


def read(asking: Peers, address: str, token: str = TOKEN) -> bool:
    """Whether a read of a block from one node gets it."""
    asking._holders = lambda blocks: [[(address, token, True)] for _ in blocks]
    wanted = [(block(), [ByteRange(0, 100, 0)])]
    buffer = memoryview(bytearray(100))
    left = asking.read(wanted, buffer)
    assert left == wanted or buffer == DATA.data
    return not left


def _say_nothing(sock: socket.socket) -> None:
    while sock.recv(1000):
        pass


def _babble(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"\x17" * 1000)


def _trickle(sock: socket.socket) -> None:
    for each in b"SWB1\x02" + bytes(1000):
        sock.sendall(bytes([each]))
        time.sleep(0.01)


def _hang_up(sock: socket.socket) -> None:
    sock.close()


@pytest.mark.parametrize("harm", [_say_nothing, _babble, _trickle, _hang_up])
def test_a_host_that_is_no_server_costs_a_miss(asking: Peers, harm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                harm(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert not read(asking, address)
        assert not asking._is_up(address)
        thread.join()


def _answer(server: BlockServer, body: object, *arrays: np.ndarray) -> None:
    server._answers = lambda _: [frames.encoded(body, arrays)]


def _answer_truly(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[0], DATA), DATA)


def _answer_another_block(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[1], DATA), DATA)


def _answer_twice(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[0], DATA), DATA[:32], DATA[:32])


def _answer_other_types(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[0], DATA), DATA.view("u4"))


def _answer_fewer_bytes(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[0], DATA[:50]), DATA[:50])


def _answer_more_bytes(server: BlockServer) -> None:
    _answer(server, block_digest(NAMES[0], DATA), np.empty(1 << 20, np.uint8))


def _answer_without_a_digest(server: BlockServer) -> None:
    _answer(server, "blocks", DATA)


def _cut_the_answer(server: BlockServer) -> None:
    def serve(connection, _) -> None:
        welcome(connection, 1)
        frames.read_frame(connection, frames.Limits(1 << 20, 0))
        connection.send([b"SWB1\x08" + bytes(10)])
        connection.close()

    server._serve = serve


@pytest.mark.parametrize(
    "answer",
    [
        _answer_truly,
        _answer_another_block,
        _answer_twice,
        _answer_other_types,
        _answer_fewer_bytes,
        _answer_more_bytes,
        _answer_without_a_digest,
        _cut_the_answer,
    ],
)
def test_an_answer_that_is_not_of_the_block_costs_a_miss(
    asking: Peers, monkeypatch, answer
) -> None:
    monkeypatch.setattr(peers, "_ANSWER_S", 60.0)
    monkeypatch.setattr(peers, "CONNECT_S", 60.0)
    listener = TcpListener("127.0.0.1", 0)
    server = BlockServer(listener, TOKEN.encode(), cache=CACHE, files={})
    try:
        answer(server)
        assert read(asking, listener.address) is (answer is _answer_truly)
    finally:
        server.close()


def test_a_forked_child_that_ends_leaves_the_server_of_its_parent(asking, monkeypatch) -> None:
    monkeypatch.setattr(peers, "_ANSWER_S", 60.0)
    monkeypatch.setattr(peers, "CONNECT_S", 60.0)
    listener = TcpListener("127.0.0.1", 0)
    server = BlockServer(listener, TOKEN.encode(), cache=CACHE, files={})
    try:
        in_child(server.close)
        _answer_truly(server)
        assert read(asking, listener.address)
    finally:
        server.close()


@pytest.mark.parametrize("size", [100, 128])
def test_blocks_that_arrived_before_a_node_fails_are_kept(asking: Peers, size: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    listener = TcpListener("127.0.0.1", 0)
    with closing(BlockServer(listener, TOKEN.encode(), cache=CACHE, files={})) as server:
        right = frames.encoded(block_digest(NAMES[0], data), [data])
        server._answers = lambda _: [right, right]
        asking._holders = lambda blocks: [[(listener.address, TOKEN, True)] for _ in blocks]
        wanted = [(block(n), [ByteRange(0, size, n * size)]) for n in range(2)]
        buffer = memoryview(bytearray(2 * size))
        assert asking.read(wanted, buffer) == wanted[1:]
        assert buffer[:size] == data.data


def test_the_nodes_of_a_block_are_looked_up_once(asking: Peers, tmp_path: Path) -> None:
    with homes(tmp_path):
        one, lookups, known = block(), [], asking._known_homes
        asking._known_homes = lambda: lookups.append(1) or known()
        asking._ask = lambda *_: []
        assert asking.know([one]) == asking.ask_holders([one]) == [True]
        wanted = [(one, [ByteRange(0, 100, 0)])]
        assert asking.read(wanted, memoryview(bytearray(100))) == wanted
        assert len(lookups) == 1


def test_a_node_from_an_earlier_job_is_asked_for_blocks_that_it_has(asking, tmp_path) -> None:
    addresses = ("tcp://a:1", "tcp://b:1", "tcp://c:1", "tcp://d:1")
    with homes(tmp_path, addresses=addresses, warm=[3, -1, 1]):
        nodes = asking._holders([block(n) for n in range(3)])
    assert [[address for address, *_ in each] for each in nodes] == [
        ["tcp://a:1", "tcp://d:1"],
        ["tcp://a:1"],
        ["tcp://a:1"],
    ]


def test_a_node_names_its_blocks_and_its_room(asking: Peers, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "CONNECT_S", 60.0)
    (tmp_path / "blocks").mkdir()
    for name in (*NAMES[:2], "a.tmp"):
        (tmp_path / "blocks" / name).touch()
    cache = SimpleNamespace(room=7, folder=str(tmp_path))
    listener = TcpListener("127.0.0.1", 0)
    with closing(BlockServer(listener, TOKEN.encode(), cache=cache, files={})):
        room, keys = asking._ask_room(listener.address, TOKEN, time.monotonic() + 60)
    assert room == 7
    assert sorted(keys) == sorted(keys_of_names(NAMES[:2]))


def test_a_node_that_greets_late_is_waited_for(asking: Peers, monkeypatch) -> None:
    monkeypatch.setattr(peers, "_ANSWER_S", 60.0)
    monkeypatch.setattr(peers, "CONNECT_S", 0.1)
    listener, servers = TcpListener("127.0.0.1", 0), []

    def serve() -> None:
        servers.append(BlockServer(listener, TOKEN.encode(), cache=CACHE, files={}))
        _answer_truly(servers[0])

    late = threading.Timer(0.4, serve)
    late.start()
    assert read(asking, listener.address)
    late.join()
    servers[0].close()


def test_an_old_token_is_refused(asking: Peers) -> None:
    listener = TcpListener("127.0.0.1", 0)
    server = BlockServer(listener, TOKEN.encode(), cache=CACHE, files={})
    try:
        assert not read(asking, listener.address, token="o" * 32)
    finally:
        server.close()


def test_a_node_that_fails_again_is_left_alone_twice_as_long(asking: Peers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    for pause_s in (5, 10, 20, 40, 60, 60):
        before = time.monotonic()
        assert not asking._ask((address, TOKEN, True), [], memoryview(b""), before + 60)
        assert before + pause_s <= asking._down[address][0] <= time.monotonic() + pause_s


def test_a_holder_asks_others_for_less_time_than_those_who_ask_it_wait(asking, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(peers, "_ANSWER_S", 10.0)
    asking._ask = lambda *args: seen.append(args[-1] - time.monotonic()) or []
    asking._holders = lambda blocks: [[("tcp://a:1", TOKEN, False)] for _ in blocks]
    for for_peer in (False, True):
        asking.read([(block(for_peer=for_peer), [ByteRange(0, 100, 0)])], memoryview(b""))
    assert seen[1] <= block_server._FETCH_S < peers._ANSWER_S


def test_a_node_answers_while_a_fetch_for_others_hangs(monkeypatch) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(block_server, "_FETCH_S", 0.02)
    monkeypatch.setattr(block_server, "fetch_or_wait", lambda *_: is_over.wait(60))
    server = BlockServer(TcpListener("127.0.0.1", 0), b"t" * 32, cache=CACHE, files={})
    try:
        known = SimpleNamespace(know=lambda blocks: [True] * len(blocks))
        cache = SimpleNamespace(read=lambda *_: False, holds=lambda _: False, peers=known)
        server._find_block = lambda *_: SimpleNamespace(cache=cache, name=NAMES[0], ranges=())
        [answer] = server._answers([True, [[NAMES[0], [0], [100]]]])
        assert json.loads(answer.header) == {"arrays": [], "body": None}
    finally:
        is_over.set()
        server.close()


def test_a_node_without_a_plan_gives_what_it_has_and_fetches_nothing(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it fetches")

    monkeypatch.setattr(block_server, "fetch_or_wait", fail)
    with closing(
        BlockServer(TcpListener("127.0.0.1", 0), b"t" * 32, cache=CACHE, files={})
    ) as server:
        between = SimpleNamespace(know=lambda blocks: [False] * len(blocks))
        cache = SimpleNamespace(
            read=lambda name, *_: name == NAMES[0], holds=NAMES[:1].__contains__, peers=between
        )
        server._find_block = lambda name, _: SimpleNamespace(cache=cache, name=name, ranges=())
        asked = [[name, [0], [100]] for name in NAMES[:2]]
        answers = [json.loads(each.header)["body"] for each in server._answers([True, asked])]
        assert [each is None for each in answers] == [False, True]


def test_a_read_of_known_blocks_waits_for_no_other_loader(asking, tmp_path, monkeypatch) -> None:
    def fail(_: float) -> None:
        raise AssertionError("it waits")

    with homes(tmp_path):
        new = LoaderFile(str(tmp_path), "homes", nullcontext)
        times = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=fail)
        monkeypatch.setattr(peers, "time", times)
        assert asking.ask_holders([block(n) for n in range(3)]) == [True] * 3
        unknown = SimpleNamespace(name="9" * 32 + "-00000000.block", for_peer=False, nodes=None)
        with pytest.raises(AssertionError, match="it waits"):
            asking.ask_holders([unknown])
        new.close()
        assert asking.ask_holders([unknown]) == [False]


def test_files_of_killed_loaders_are_ignored_and_removed_by_the_next_loader(
    asking, tmp_path
) -> None:
    with homes(tmp_path) as file:
        dead = tmp_path / "homes" / "dead"
        dead.write_bytes(file._path.read_bytes())
    assert asking.ask_holders([block()]) == [False]
    with homes(tmp_path):
        assert not dead.exists()
        assert asking.ask_holders([block()]) == [True]


def test_a_cache_that_is_opened_removes_no_file_of_a_loader_that_starts(tmp_path) -> None:
    cache = cache_of(CacheSettings(tmp_path))
    new = Path(cache.folder, "homes", "new")
    new.parent.mkdir(parents=True)
    new.touch()  # its loader is about to lock it
    cache_of(CacheSettings(tmp_path)).usage_file()
    assert new.exists()


def test_a_rank_of_no_node_asks_none_where_all_fail(asking, tmp_path) -> None:
    with homes(tmp_path, me=2):
        assert asking.ask_holders([block()]) == [True]
        soon = time.monotonic() + 60
        asking._down = {"tcp://a:1": (soon, 1), "tcp://b:1": (soon, 1)}
        wanted = [(block(), [ByteRange(0, 100, 0)])]
        assert asking.read(wanted, memoryview(b"")) == wanted


@pytest.mark.parametrize(
    ("host", "name", "expected"),
    [
        ("127.0.1.1", "elsewhere", "tcp://elsewhere:7"),
        ("127.0.0.1", socket.gethostname(), "tcp://127.0.0.1:7"),
        ("10.0.0.1", "elsewhere", "tcp://10.0.0.1:7"),
        ("fd00::1", "elsewhere", "tcp://[fd00::1]:7"),
    ],
)
def test_a_loopback_address_of_another_machine_is_not_used(host, name, expected) -> None:
    assert _address("tcp", host, name, 7) == expected
