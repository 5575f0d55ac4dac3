"""A job's start: one listing and one manifest for all ranks, counted by the server."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.storage import found_once
from shardwise.storage.found_once import made_once
from shardwise.storage.open import read_whole
from shardwise.storage.options import StorageOptions
from shardwise.stores import register
from tests.extensions.remote.stores.test_own_store import FolderClient
from tests.support.ranks import run_ranks
from tests.support.remote_shards import put_indexed_shards
from tests.support.servers import S3Server
from tests.support.tables import numbered_table
from tests.support.tfrecords import example, record_file
from tests.support.token_files import documents_of, write_litdata, write_megatron

WORLD = 256
URLS = ["s3://bucket/file"]
PROGRAM = Path(__file__).parent / "programs" / "opens.py"
FOREIGN = Path(__file__).parents[1] / "extensions/formats/foreign/data"


class Store:
    """The group's store of all ranks, which counts what it is asked whether it has."""

    def __init__(self) -> None:
        self.inner, self.checks = dist.HashStore(), Counter()
        self.inner.set_timeout(timedelta(seconds=60))
        self.facts: list[str] = []
        self.damage = lambda value: value

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def check(self, keys):
        found = self.inner.check(keys)
        self.checks[found] += 1
        return found

    def set(self, key, value) -> None:
        self.facts.append(key)
        self.inner.set(key, self.damage(value))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def as_rank(monkeypatch, store):
    """Runs a function on so many ranks at once, each a thread with its rank and the one store."""
    here, ranks = threading.local(), {"world": 1}
    monkeypatch.setattr(found_once, "group_store", lambda: store)
    monkeypatch.setattr(
        found_once, "group_rank_and_size", lambda: (getattr(here, "rank", 0), ranks["world"])
    )

    def run(function, world_size):
        ranks["world"] = world_size
        found = [None] * world_size

        def call(rank):
            here.rank = rank
            try:
                found[rank] = function()
            except Exception as error:  # noqa: BLE001 - compared by the test
                found[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return found

    return run


@pytest.fixture(scope="module")
def datasets(s3: S3Server, tmp_path_factory) -> list[tuple[str, str, dict[str, Any]]]:
    """Data of all kinds that a store has: the function that opens each, URL and options."""
    folder = tmp_path_factory.mktemp("start")
    put_indexed_shards(s3, "start-tar", [5] * 4)
    for number in range(4):
        table = folder / "x.parquet"
        pq.write_table(numbered_table(9 * number, 9 * number + 9), table, row_group_size=4)
        s3.put(f"start-parquet/{number}.parquet", table.read_bytes())
        lines = b"".join(b'{"number": %d}\n' % (9 * number + row) for row in range(9))
        s3.put(f"start-jsonl/{number}.jsonl", lines)
        records = record_file([example({"number": [row]}) for row in range(number, 9)])
        s3.put(f"start-tfrecord/{number}.tfrecord", records)
        s3.put(f"start-files/{number}.txt", b"text")
    for path in (FOREIGN / "mds").iterdir():
        s3.put(f"start-mds/{path.name}", path.read_bytes())
    write_megatron(folder / "a.bin", documents_of([30, 1, 12]))
    write_litdata(folder, [documents_of([30, 1]), documents_of([12])], "no_header_numpy:5")
    for path in (*folder.glob("*.bin"), folder / "a.idx", folder / "index.json"):
        of_megatron = path.stem == "a"
        s3.put(f"start-{'megatron' if of_megatron else 'chunks'}/{path.name}", path.read_bytes())
    s3.put("start-files/list.csv", b"path\n0.txt\n1.txt\n2.txt\n3.txt\n")
    return [
        ("tar", s3.url("start-tar/*.tar"), {}),
        ("parquet", s3.url("start-parquet/"), {}),
        ("jsonl", s3.url("start-jsonl/*.jsonl"), {}),
        ("tfrecord", s3.url("start-tfrecord/*.tfrecord"), {}),
        ("mds", s3.url("start-mds"), {}),
        ("files", s3.url("start-files/list.csv"), {}),
        ("tokens", s3.url("start-megatron/a.bin"), {"block": 4}),
        ("tokens", s3.url("start-megatron/a.bin"), {"block": 4, "documents": True}),
        ("tokens", s3.url("start-chunks/index.json"), {"block": 4, "documents": True}),
    ]


def starts(s3: S3Server) -> Counter[str]:
    """Requests for the data, those for listings among them; the log starts anew."""
    seen = [f"{each['method']} {each['path']}" for each in s3.requests()]
    s3.front.log.write_bytes(b"")
    return Counter(each for each in seen if "start-" in each)


def open_one(
    s3: S3Server, name: str, url: str, options: dict[str, Any]
) -> tuple[int, tuple[str, ...]]:
    dataset = getattr(sw, name)(url, storage=s3.unhedged, **options)
    return len(dataset), dataset.fields


def test_256_ranks_open_data_by_the_requests_of_one(s3, datasets, as_rank, monkeypatch, tmp_path):
    for name, url, options in datasets:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "alone"))
        starts(s3)
        [expected] = as_rank(partial(open_one, s3, name, url, options), 1)
        alone = starts(s3)
        num_listings = sum("list-type" in each for each in alone.elements())
        assert num_listings == (name not in ("mds", "files", "tokens"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "together"))
        found = as_rank(partial(open_one, s3, name, url, options), WORLD)
        assert set(found) == {expected}, (name, found[0])
        assert starts(s3) == alone, name


@pytest.mark.parametrize("name", ["parquet", "tokens"])
def test_a_rank_reads_its_rows_and_no_header_of_a_file(s3, datasets, as_rank, name):
    url, options = next(each[1:] for each in datasets if each[0] == name)
    opened = as_rank(lambda: getattr(sw, name)(url, storage=s3.unhedged, **options).source, 4)
    assert len({source.manifest.num_samples for source in opened}) == 1
    starts(s3)
    for source in opened:
        # As a worker process gets it.
        copied = pickle.loads(pickle.dumps(source))
        rows = np.arange(0, source.manifest.num_samples, 3)
        assert len(copied.read(rows).ids) == len(rows)
        # A row group is a request, as is a block of tokens.
        num_reads = len(np.unique(source.manifest.locate(rows)[0]) if name == "parquet" else rows)
        assert starts(s3).total() == num_reads


@pytest.mark.long
def test_four_nodes_open_data_by_the_requests_of_one(s3, datasets, monkeypatch, tmp_path):
    starts(s3)
    sizes = [open_one(s3, *each)[0] for each in datasets]
    alone = starts(s3)
    mark = s3.put("start-mark", b"x")
    starts(s3)
    settings = {"config": s3.config, "datasets": datasets, "mark": mark}
    done = run_ranks(PROGRAM, json.dumps(settings), tmp_path / "nodes", nproc=4)
    seen = [f"{each['method']} {each['path']}" for each in s3.requests()]
    opening = seen[: next(at for at, each in enumerate(seen) if "start-mark" in each)]
    assert Counter(opening) == alone
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    for size, *of_ranks in zip(sizes, *ranks, strict=True):
        assert sorted(chain.from_iterable(of_ranks)) == list(range(size))


def test_256_ranks_list_once_and_read_one_manifest(s3: S3Server, as_rank):
    urls = put_indexed_shards(s3, "job", [5] * 4)
    pattern = urls[0].replace("000.tar", "*.tar")

    def listings() -> int:
        return sum("list-type" in seen["path"] for seen in s3.requests())

    before = listings()
    sw.tar(pattern, storage=s3.unhedged)
    # Shards and their indexes are in one listing.
    assert listings() == before + 1
    found = as_rank(lambda: sw.tar(pattern, storage=s3.unhedged).source.urls, WORLD)
    assert all(list(each) == urls for each in found)
    assert listings() == before + 2

    key = s3.put("job/train.swm", b"x" * 100_000)

    def reads() -> int:
        return sum("train.swm" in each["path"] for each in s3.requests() if each["method"] == "GET")

    options = StorageOptions(**s3.unhedged)
    found = as_rank(lambda: read_whole(key, options=options, once=True), WORLD)
    assert set(found) == {b"x" * 100_000}
    assert reads() == 1

    listed = s3.put("job/train.swm.csv", b"path\na.txt\nb.txt\n")
    found = as_rank(lambda: sw.files(listed, storage=s3.unhedged).source.listing.opened_ns, WORLD)
    # One time, too: the ranks share what a cache notes of the files.
    assert len(set(found)) == 1
    assert reads() == 2


def test_each_call_is_made_anew_and_a_maker_that_fails_costs_the_others_nothing(as_rank):
    made = []

    def make() -> bytes:
        made.append(threading.get_ident())
        return b"%d" % len(made)

    assert set(as_rank(lambda: made_once("numbers", URLS, None, make), 4)) == {b"1"}
    assert set(as_rank(lambda: made_once("numbers", URLS, None, make), 4)) == {b"2"}
    failed = []

    def fail_once() -> bytes:
        if not failed:
            failed.append(1)
            raise OSError("away")
        return b"there"

    found = as_rank(lambda: made_once("failing", URLS, None, fail_once), 4)
    assert sorted(map(str, found)) == ["away", *(["b'there'"] * 3)]

    def fail() -> bytes:
        failed.append(1)
        raise DataError("damaged")

    failed.clear()
    assert set(map(str, as_rank(lambda: made_once("damaged", URLS, None, fail), 4))) == {"damaged"}
    assert len(failed) == 4


def test_a_rank_asks_once_whether_facts_are_there(as_rank, store):
    for rank in (1, 3):
        store.checks.clear()
        assert (
            as_rank(lambda: made_once("numbers", URLS, None, lambda: b"made"), rank)[0] == b"made"
        )
        # The maker looks before it sets; the facts of one call are not those of the next.
        assert store.checks[True] == rank - 1
    assert len(store.facts) == 1


@pytest.mark.parametrize("seed", range(20))
def test_damaged_facts_are_found_again_by_each_rank(seed, as_rank, store, caplog):
    random = Random(seed)

    def damage(value: bytes) -> bytes:
        cut, at = bytearray(value), random.randrange(len(value))
        cut[at] ^= 1 << random.randrange(8)
        return bytes(cut[: at + 1]) if seed % 2 else bytes(cut)

    store.damage = damage
    found = as_rank(lambda: made_once("facts", URLS, None, lambda: b"facts" * 20), 3)
    assert found == [b"facts" * 20] * 3
    assert caplog.text.count(f"{store.facts[0]} is damaged") == 2


def test_a_lone_open_gives_others_no_facts_older_than_the_bound(as_rank, monkeypatch):
    made = []

    def make() -> bytes:
        made.append(1)
        return b"%d" % len(made)

    def open_data() -> bytes:
        return made_once("numbers", URLS, None, make)

    def open_on_rank_0() -> bytes | None:
        return None if found_once.group_rank_and_size()[0] else open_data()

    now = [1e9]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(found_once, "time", clock)
    assert as_rank(open_data, 3) == [b"1"] * 3
    assert as_rank(open_on_rank_0, 3) == [b"2", None, None]
    now[0] += found_once._OLD_S + 1
    first, *others = as_rank(open_data, 3)
    # One call more than the others': rank 0 finds its own facts, and one of them theirs.
    assert {first, *others} == {b"3", b"4"}
    assert others[0] == others[1] != first


def test_ranks_that_open_one_url_of_two_stores_get_the_data_of_each(tmp_path, monkeypatch, as_rank):
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    register("folder", FolderClient)
    stores = [str(tmp_path / "one"), str(tmp_path / "other")]
    for rows, store in zip((3, 5), stores, strict=True):
        bucket = Path(store, "bucket")
        bucket.mkdir(parents=True)
        (bucket / "0.jsonl").write_text(f'{{"of_{rows}": 1}}\n' * rows)
        pq.write_table(numbered_table(0, rows), bucket / "0.parquet")
        (bucket / "list.csv").write_text("path\n" + "0.jsonl\n" * rows)
        with sw.TarWriter(str(bucket / "{shard}.tar")) as writer:
            for row in range(rows):
                writer.write({"__key__": str(row), "txt": b"text"})
        record = example({f"of_{rows}": [1]})
        (bucket / "0.tfrecord").write_bytes(record_file([record] * rows))
    names = {"jsonl": "0.jsonl", "tfrecord": "0.tfrecord", "parquet": "0.parquet"}
    names |= {"files": "list.csv", "tar": "*.tar"}
    turns = threading.Lock()
    order: list[int] = []

    def open_both() -> list[tuple[int, ...]]:
        with turns:
            order.append(len(order) % 2)
            first = order[-1]
        found = {}
        for which in (first, 1 - first):
            storage = {"folder": stores[which]}
            of_store = [
                getattr(sw, name)(f"folder://bucket/{path}", storage=storage)
                for name, path in names.items()
            ]
            found[which] = [*map(len, of_store), *(each.fields for each in of_store[:2])]
        return found[0] + found[1]

    expected = [*[3] * 5, *[("of_3",)] * 2, *[5] * 5, *[("of_5",)] * 2]
    assert as_rank(open_both, 2) == [expected] * 2


def test_others_make_what_a_killed_rank_was_making_and_a_forked_child_makes_its_own():
    done = run_ranks(PROGRAM.with_name("makes.py"), nproc=3, check=False)
    children = [f"child of {rank}: by {rank}" for rank in range(3)]
    # Other lines are warnings, of forks among threads.
    assert {"1: made", "2: made", *children} <= set(done.stdout.splitlines()), done.stdout
