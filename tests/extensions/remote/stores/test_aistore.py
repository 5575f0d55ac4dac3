"""AIStore, against a cluster's stand-in that answers as a recorded one."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import shardwise as sw
from shardwise.base.errors import StaleIndexError, StorageError
from shardwise.extensions.remote.requests import retry
from shardwise.storage import StorageOptions, expand, open_file
from shardwise.storage.write import upload
from tests.support.ais_cluster import ais_cluster
from tests.support.remote_shards import check_epoch, loader, numbered_tar, put_shards
from tests.support.waiting import wait_for

CONTENT = bytes(range(256)) * 40
ODD = [
    "a b.tar",
    "a+b.tar",
    "50%.tar",
    "a?b.tar",
    "a#b.tar",
    "a&b.tar",
    "[sq].tar",
    "{br}.tar",
    "ä.tar",
]


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    for name in ("AIS_ENDPOINT", "AIS_AUTHN_TOKEN", "AIS_AUTHN_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ais_cluster() as found:
        yield found


def options(cluster, **settings):
    return StorageOptions.of({"endpoint": cluster.endpoint, **settings})


def test_ranges_are_read_from_targets_and_the_token_stays_with_the_gateway(cluster):
    cluster.token = "ais_t0ken"
    file = open_file(
        cluster.put("train/000.tar", CONTENT), options=options(cluster, token="ais_t0ken")
    )
    assert file.read(7, 9) == CONTENT[7:16]
    assert file.stat().num_bytes == len(CONTENT)
    assert cluster.count(node=0)
    for node, _, _, headers in cluster.asked:
        assert headers.get("authorization") == (None if node else "Bearer ais_t0ken")


def test_odd_names_are_written_and_read(cluster):
    given = options(cluster)
    for number, name in enumerate(ODD):
        upload(f"ais://bucket/{name}", data := CONTENT[number:], options=given)
        file = open_file(f"ais://bucket/{name}", options=given)
        assert file.stat().num_bytes == len(data)
        assert file.read(5, 100) == data[5:105]
        assert file.read(len(data) - 10, 10) == data[-10:]
    assert sorted(expand("ais://bucket/*.tar", options=given)) == sorted(
        f"ais://bucket/{name}" for name in ODD
    )


def test_what_is_wrong_is_told(cluster):
    cluster.put("a.tar", CONTENT)
    given = options(cluster)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        upload("ais://nobucket/a.tar", b"x", options=given)
    with pytest.raises(StorageError, match="AIS_ENDPOINT"):
        open_file("ais://bucket/a.tar").read(0, 1)
    with pytest.raises(StorageError, match="names no host"):
        open_file(
            "ais://bucket/a.tar", options=StorageOptions.of({"endpoint": "http://:7080"})
        ).read(0, 1)


@pytest.mark.parametrize("form", ["bare", "json", "default", "variable"])
def test_the_token_comes_from_where_the_clusters_own_tools_look(
    cluster, monkeypatch, tmp_path, form
):
    cluster.token = "ais_t0ken"
    cluster.put("a.tar", CONTENT)
    text = "ais_t0ken\n" if form == "bare" else json.dumps({"token": "ais_t0ken"})
    file = tmp_path / (".config/ais/cli/auth.token" if form == "default" else "token")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoint)
    # What the environment says is part of what tells one client from another.
    with pytest.raises(StorageError, match="401"):
        monkeypatch.setenv("AIS_AUTHN_TOKEN", "wr0ng")
        open_file("ais://bucket/a.tar").read(0, 3)
    monkeypatch.delenv("AIS_AUTHN_TOKEN")
    if form == "variable":
        monkeypatch.setenv("AIS_AUTHN_TOKEN", "ais_t0ken")
    elif form != "default":
        monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(file))
    assert open_file("ais://bucket/a.tar").read(0, 3) == CONTENT[:3]


def test_a_token_that_is_renewed_in_its_file_goes_unnoticed(cluster, monkeypatch, tmp_path):
    urls = put_shards(cluster, "train", [40, 40])
    cluster.token = "first"
    (tmp_path / "token").write_text(json.dumps({"token": "first"}))
    monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(tmp_path / "token"))
    data = sw.tar(urls, storage={"endpoint": cluster.endpoint}).decode(cls=int)
    made = loader(data, batch_size=4, shuffle="full")
    seen = []
    for step, batch in enumerate(made):
        seen.append(batch)
        if step == 3:
            (tmp_path / "token").write_text(json.dumps({"token": "second"}))
            cluster.token = "second"
    check_epoch(seen, 80)
    with pytest.raises(StorageError, match="can't write"):
        cluster.token = "third"
        upload("ais://bucket/x", b"x", options=options(cluster))


def test_a_gateway_that_is_away_and_starts_again_is_waited_for(cluster, monkeypatch):
    # At pauses of up to 10 s, ten attempts in a row take 20 s.
    monkeypatch.setattr(retry, "_MAX_PAUSE_S", 0.1)
    batches = opened(cluster, [12, 12])
    gateway = cluster.nodes[0]
    gateway.leave()

    refusals = [
        (400, "ErrNoNodes", "no storage targets in the cluster"),
        (503, "ErrStarting", "starting up"),
        (404, "ErrBckNotFound", "no such bucket yet"),
    ]

    def come_back():
        cluster.refusal = refusals[0]
        gateway.come()
        for cluster.refusal in refusals:
            wait_for_requests(cluster, node=0, num_more=3)
        cluster.refusal = None

    with in_a_second(come_back):
        check_epoch(batches, 24)


def test_a_target_that_dies_is_waited_for_and_one_that_joins_is_asked_again(cluster, monkeypatch):
    monkeypatch.setattr(retry, "_MAX_PAUSE_S", 0.1)
    batches = opened(cluster, [40, 40])
    # Dead for good: the gateway sends readers to it until it notices.
    cluster.chosen = 0
    cluster.nodes[1].leave()

    def notice():
        cluster.chosen = 1
        # The new one has nothing yet.
        cluster.absent |= set(cluster.objects["bucket"])
        wait_for_requests(cluster, node=None, num_more=4)
        cluster.absent.clear()

    with in_a_second(notice):
        check_epoch(batches, 80)


def opened(cluster, sizes):
    """A loader whose shards are open, and that prefetches nothing before its first batch."""
    urls = put_shards(cluster, "train", sizes)
    data = sw.tar(urls, storage={"endpoint": cluster.endpoint, "prefetch_bytes": 0}).decode(cls=int)
    return loader(data, batch_size=4, shuffle="full", num_threads=1)


@contextmanager
def in_a_second(change):
    """Call a function a second from now, in a thread; raise what it raised."""
    pool = ThreadPoolExecutor(1)
    try:
        changed = pool.submit(lambda: (time.sleep(1), change()))
        yield
        changed.result(timeout=120)
    finally:
        pool.shutdown(wait=False)


def wait_for_requests(cluster, *, node, num_more):
    """Wait until a node, or any target (None), was asked so many times more."""
    enough = cluster.count(node=node) + num_more
    wait_for(lambda: cluster.count(node=node) >= enough)


def test_settings_come_before_the_environment_and_reach_workers(cluster, monkeypatch):
    urls = put_shards(cluster, "train", [40, 40])
    cluster.token = "ais_t0ken"
    monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "wr0ng")
    given = options(cluster, token="ais_t0ken", headers={"X-Own": "1"})
    with loader(sw.tar(urls, storage=given).decode(cls=int), num_workers=1) as made:
        check_epoch(made, 80)
    upload("ais://bucket/x", b"x", options=given)
    assert all(headers.get("x-own") for node, _, _, headers in cluster.asked if node == 0)


# So that no two samples lie close enough to be one range.
LARGE = 20_000


def counted(cluster, data, **given):
    """An epoch in an order that jumps, its batches, and what was asked of the targets."""
    with loader(data, batch_size=16, shuffle="full", **given) as made:
        before = len(cluster.asked)
        check_epoch(made, len(data), num_bytes=LARGE)
    seen = [path for node, _, path, _ in cluster.asked[before:] if node]
    return len(made), sum("/ml/moss/" in path for path in seen), len(seen)


def test_a_batch_is_one_request(cluster):
    urls = put_shards(cluster, "train", [100, 200, 100], num_bytes=LARGE)
    data = sw.tar(urls, storage={"endpoint": cluster.endpoint}).decode(cls=int)
    len(data)
    num_batches, num_many, num_asked = counted(cluster, data)
    assert num_batches == 25
    assert num_many == 25
    assert num_asked <= 1.2 * num_batches


@pytest.mark.parametrize("fault", ["cut", "hang", "missing", "older"])
def test_what_one_request_does_not_bring_is_read_range_by_range(cluster, fault, caplog):
    urls = put_shards(cluster, "train", [16, 16], num_bytes=LARGE)
    storage = {"endpoint": cluster.endpoint, "attempt_timeout_s": 1.0}
    data = sw.tar(urls, storage=storage).decode(cls=int)
    len(data)
    cluster.has_get_batch = fault != "older"
    cluster.break_batch = fault
    num_batches, num_many, num_asked = counted(cluster, data)
    # Of "missing", all but the last three entries come.
    assert num_asked - num_many >= (2 if fault == "missing" else 4) * num_batches
    if fault == "older":
        assert num_many == 0
        assert caplog.text.count("has no GetBatch") == 1
    assert caplog.text.count("answers again") == 0


def test_a_shard_that_is_replaced_is_noticed_though_batches_tell_no_versions(cluster):
    urls = put_shards(cluster, "train", [400, 400])
    data = sw.tar(urls, storage={"endpoint": cluster.endpoint})
    batches = iter(loader(data, batch_size=8, shuffle="full", num_threads=1))
    next(batches)
    cluster.put("train/001.tar", numbered_tar(1000, 400, 1000))
    with pytest.raises(StaleIndexError):
        list(batches)
