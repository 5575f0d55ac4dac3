"""What a store is to this library: one kit, held by every store, each by a server of its own.

A store that can't do something says so here, with the reason, and the user gets an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.storage import StorageOptions, expand, open_file
from tests.extensions.remote.stores.test_hub import hub
from tests.support.ais_cluster import ais_cluster
from tests.support.google_server import google_server
from tests.support.io_counts import counted_io
from tests.support.remote_shards import check_epoch, loader, numbered_tar, put_shards
from tests.support.servers import azurite, nginx, s3_gateway
from tests.support.sftp_server import sftp_server
from tests.support.tcp_proxy import TcpProxy

CONTENT = bytes(range(256)) * 40
ODD = [
    "a b.tar", "a+b.tar", "a%20b.tar", "50%.tar", "a&b.tar", "a#b.tar", "a?b.tar", "[sq].tar",
    "{br}.tar", "ä.tar",
]  # fmt: skip
NO_LISTING = "web servers have no listing that programs can rely on"
READ_ONLY = "its files belong to commits"


@dataclass
class Store:
    """A store with an empty place for files.

    Attributes:
        root: the URL of that place, without a slash at the end.
        put: stores a file there under a name; returns its URL.
        config: the settings of a client.
        wrong: settings that are refused, or None where nothing is asked for.
        proxy: before the server; transparent until it is told to break connections.
        lacks: what it can't do, and why: "list", "write", "odd names", "buckets".
    """

    root: str
    store: Callable[[str, bytes], Any]
    config: dict[str, Any]
    wrong: dict[str, Any] | None
    proxy: TcpProxy
    lacks: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> str:
        self.store(name, data)
        return f"{self.root}/{name}"

    def needs(self, *abilities: str) -> None:
        """Skip the test, with the reason, where the store lacks one of these."""
        for ability in abilities:
            if ability in self.lacks:
                pytest.skip(f"{ability}: {self.lacks[ability]}")


def _proxied(stack: ExitStack, url: str) -> tuple[TcpProxy, str]:
    """A proxy before a server, and the URL with its port."""
    port = re.search(r":(\d+)", url.partition("://")[2])
    assert port is not None
    proxy = stack.enter_context(TcpProxy(int(port[1])))
    return proxy, url.replace(port[0], f":{proxy.port}", 1)


def _s3(stack: ExitStack, folder: Path) -> Store:
    server = stack.enter_context(s3_gateway(folder))
    proxy, url = _proxied(stack, server.endpoint)
    config = server.config | {"aws_endpoint": url}
    wrong = config | {"aws_secret_access_key": "wr0ng"}
    return Store("s3://bucket", server.put, config, wrong, proxy)


def _azure(stack: ExitStack, folder: Path) -> Store:
    server = stack.enter_context(azurite(folder))
    proxy, url = _proxied(stack, server.endpoint)
    config = server.config | {"azure_storage_endpoint": url}
    wrong = config | {"azure_storage_account_key": "d3JvbmcK"}
    return Store("az://container", server.put, config, wrong, proxy)


def _google(stack: ExitStack, folder: Path) -> Store:
    del folder
    url, state = stack.enter_context(google_server())
    proxy, url = _proxied(stack, url)
    # As its own clients find an emulator.
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("STORAGE_EMULATOR_HOST", url.removeprefix("http://"))
    return Store("gs://bucket", state.put, {}, None, proxy)


def _http(stack: ExitStack, folder: Path) -> Store:
    server = stack.enter_context(nginx(folder, bearer="t0ken"))

    def put(name: str, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(".part").write_bytes(data)
        path.with_name(".part").rename(path)

    lacks = {"list": NO_LISTING, "write": "nginx has none here", "odd names": "URLs escape them"}
    lacks["buckets"] = "a server has none"
    proxy, url = _proxied(stack, server.url)
    return Store(url, put, {"token": "t0ken"}, {"token": "wr0ng"}, proxy, lacks)


def _hub(stack: ExitStack, folder: Path) -> Store:
    del folder
    files: dict[str, bytes] = {}
    proxy, url = _proxied(stack, stack.enter_context(hub(files=files, page=100))[0])
    config = {"endpoint": url, "token": "hf_t0ken"}
    root = "hf://datasets/org/name@v1"
    lacks = {"write": READ_ONLY}
    return Store(root, files.__setitem__, config, config | {"token": "wr0ng"}, proxy, lacks)


def _ais(stack: ExitStack, folder: Path) -> Store:
    del folder
    cluster = stack.enter_context(ais_cluster(token="ais_t0ken"))
    proxy, url = _proxied(stack, cluster.endpoint)
    config = {"endpoint": url, "token": "ais_t0ken"}
    return Store("ais://bucket", cluster.put, config, config | {"token": "wr0ng"}, proxy)


def _sftp(stack: ExitStack, folder: Path) -> Store:
    server = stack.enter_context(sftp_server(folder / "files"))
    wrong = server.config | {"key_filename": None, "password": "wr0ng"}
    proxy, root = _proxied(stack, server.root)
    lacks = {"buckets": "a folder that is not there is one that is empty"}
    return Store(root, server.put, server.config, wrong, proxy, lacks)


STORES = {
    "s3": _s3, "azure": _azure, "google": _google, "http": _http, "hub": _hub, "ais": _ais,
    "sftp": _sftp,
}  # fmt: skip


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    with ExitStack() as stack:
        yield STORES[request.param](stack, tmp_path_factory.mktemp(request.param))


def by_default(*names: str) -> pytest.MarkDecorator:
    """Of stores that one client reads, these by default, and the others with the long tests."""
    stores = [pytest.param(n, marks=[] if n in names else [pytest.mark.long]) for n in STORES]
    return pytest.mark.parametrize("store", stores, indirect=True, scope="module")


def test_an_epoch_of_a_brace_pattern_is_exact_in_threads_and_in_a_worker_process(store):
    put_shards(store, "epoch", [30, 20, 25])
    given = StorageOptions.of(store.config)
    # Two datasets on one options object, the second in a worker process.
    first, second = (
        sw.tar(f"{store.root}/epoch/{{000..002}}.tar", storage=given).decode(cls=int)
        for _ in range(2)
    )
    check_epoch(loader(first, shuffle="full", num_threads=4), 75)
    with loader(second, num_workers=1) as made:
        check_epoch(made, 75)
    assert given.settings() == store.config


def test_ranges_have_their_bytes_and_ends_are_told(store):
    url = store.put("ranges.bin", CONTENT)
    file = open_file(url, options=StorageOptions(config=store.config))
    assert file.stat().num_bytes == len(CONTENT)
    buffer = bytearray(12)
    file.read_spans([0, 9000], [4, 12], memoryview(buffer), 0)
    assert buffer == CONTENT[:4] + CONTENT[9000:9008]
    for offset in (len(CONTENT) - 1, len(CONTENT) + 5):
        with pytest.raises(sw.DataError, match=f"ended at byte {len(CONTENT)}"):
            file.read(offset, 2)


def test_directories_globs_and_listings_of_many_names(store):
    given = StorageOptions(config=store.config)
    if "list" in store.lacks:
        with pytest.raises(sw.StorageError, match=store.lacks["list"]):
            expand(f"{store.root}/list/*.tar", options=given)
        return
    many = 1100 if store.root.startswith(("gs:", "ais:", "hf:")) else 60
    for name in ["000.tar", "001.tar", "deep/002.tar", "deep/er/003.tar", "notes.txt"]:
        store.put(f"list/{name}", b"x")
    for number in range(many):
        store.put(f"many/{number:05d}.tar", b"x")

    def found(pattern: str) -> list[str]:
        return [
            url.removeprefix(f"{store.root}/list/")
            for url in expand(f"{store.root}/list/{pattern}", options=given)
        ]

    assert found("") == ["000.tar", "001.tar"]
    assert found("*.tar") == ["000.tar", "001.tar"]
    assert found("00[1-9].ta?") == ["001.tar"]
    assert found("**/*.tar") == ["000.tar", "001.tar", "deep/002.tar", "deep/er/003.tar"]
    assert found("*/*.tar") == ["deep/002.tar"]
    assert len(expand(f"{store.root}/many/", options=given)) == many
    with pytest.raises(sw.MissingShardError):
        found("none*.tar")


def test_odd_names_are_read(store):
    store.needs("odd names")
    given = StorageOptions(config=store.config, request_timeout_s=60)
    for number, name in enumerate(ODD):
        url = store.put(f"odd/{name}", data := CONTENT[number:])
        assert open_file(url, options=given).read(3, 50) == data[3:53], name
    found = expand(f"{store.root}/odd/", options=given)
    assert found == sorted(f"{store.root}/odd/{name}" for name in ODD)


@by_default("s3", "http", "hub", "sftp")
def test_a_shard_that_is_replaced_in_mid_epoch_and_between_two_openings_is_told(store):
    urls = put_shards(store, "stale", [100, 100])
    written_s = int(time.time())
    data = sw.tar(urls, storage={**store.config, "prefetch_bytes": 0})
    made = loader(data, batch_size=8, shuffle="full", num_threads=1)
    batches = iter(made)
    next(batches)
    another = numbered_tar(1000, 100, 1000)
    # Of the same size, and of another time where times have whole seconds.
    while int(time.time()) == written_s:
        time.sleep(0.01)
    with pytest.raises(sw.StaleIndexError):
        while True:
            store.put("stale/001.tar", another)
            # On a fast or a busy machine all of an epoch may have been read ahead, or be over.
            if next(batches, None) is None:
                batches = iter(made)
    with pytest.raises(sw.StaleIndexError):
        list(loader(data, num_threads=1))
    assert len(sw.tar(urls, storage=store.config)) == 200


def test_the_cache_serves_the_second_epoch(store, tmp_path):
    urls = put_shards(store, "cached", [40, 40])
    data = sw.tar(urls, storage=store.config, cache=tmp_path / "blocks").decode(cls=int)
    made = loader(data, shuffle=True, num_threads=0)
    check_epoch(made, 80)
    with counted_io() as counted:
        check_epoch(made, 80)
    assert (counted["requests"], counted["misses"]) == (0, 0)
    assert counted["hits"] > 0


def test_shards_are_written_with_their_indexes(store):
    pattern = f"{store.root}/written/{{shard:03d}}.tar"

    def write() -> None:
        with sw.TarWriter(pattern, max_samples=5, storage=store.config) as writer:
            for i in range(12):
                writer.write({"__key__": f"{i:03d}", "cls": i})

    if "write" in store.lacks:
        with pytest.raises(sw.StorageError, match=r"can't write"):
            write()
        return
    write()
    data = sw.tar(f"{store.root}/written/", storage=store.config).decode(cls=int)
    assert [sample["cls"] for sample in data] == list(range(12))
    given = StorageOptions(config=store.config)
    for number in range(3):
        open_file(f"{store.root}/written/{number:03d}.tar.swi", options=given).open()


def test_what_is_wrong_is_told_at_once_and_without_secrets(store):
    url = store.put("there.bin", CONTENT)
    given = StorageOptions(config=store.config)
    with pytest.raises(sw.MissingShardError):
        open_file(f"{store.root}/none.bin", options=given).read(0, 1)
    if store.wrong is not None:
        with pytest.raises(sw.StorageError, match="credentials") as caught:
            open_file(url, options=StorageOptions(config=store.wrong)).read(0, 1)
        assert "wr0ng" not in str(caught.value)
        assert "d3JvbmcK" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_told_by_name(store):
    store.needs("buckets")
    scheme, _, rest = store.root.partition("://")
    elsewhere = rest.replace("org/name", "org/nobody") if scheme == "hf" else "nobucket"
    given = StorageOptions(config=store.config)
    with pytest.raises(sw.ShardwiseError, match=r"nobody|nobucket"):
        open_file(f"{scheme}://{elsewhere}/there.bin", options=given).read(0, 1)
    with pytest.raises(sw.ShardwiseError, match=r"nobody|nobucket"):
        expand(f"{scheme}://{elsewhere}/*.tar", options=given)


# paramiko's own thread for a read prints that its connection broke.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@by_default("s3", "hub", "sftp")
def test_connections_that_break_cost_time_and_no_sample(store):
    urls = put_shards(store, "broken", [40, 40], num_bytes=20_000)
    data = sw.tar(urls, storage={**store.config, "prefetch_bytes": 0}).decode(cls=int)
    assert len(data) == 80
    before = store.proxy.num_broken
    # A server keeps its connections: the reader asks for new ones when these break.
    store.proxy.breaks = 8
    if store.root.startswith(("hf:", "ais:")):
        # Only redirects come through it.
        store.proxy.most_bytes = 50
    made = loader(data, shuffle="full", num_threads=2)
    for _ in range(20):
        check_epoch(made, 80, num_bytes=20_000)
        store.proxy.drop()
        if store.proxy.num_broken - before >= 6:
            break
    store.proxy.breaks = 0
    assert store.proxy.num_broken - before >= 6
