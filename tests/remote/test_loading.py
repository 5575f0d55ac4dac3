"""Loaders over stores: counts, secrets, forks, first batches."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from contextlib import ExitStack

import pytest
import torch  # noqa: F401 - imported before a first batch is timed: that takes seconds

import shardwise as sw
from shardwise.extensions.remote.requests.event_loop import runtime
from tests.support.batch_servers import addresses, serving
from tests.support.fault_proxy import FaultProxy
from tests.support.remote_shards import (
    body,
    check_epoch,
    loader,
    put_indexed_shards,
    put_shards,
)
from tests.support.tars import tar_bytes
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    # Large payloads are made without a buffer that all of them share.
    ("executor", "shuffle", "num_bytes"),
    [
        ({"num_threads": 0}, False, 1000),
        ({"num_threads": 0}, "full", 100_000),
        pytest.param({"num_threads": 3}, "window", 1000, marks=pytest.mark.long),
        ({"num_threads": 3}, False, 100_000),
        pytest.param({"num_workers": 2}, "full", 1000, marks=pytest.mark.long),
        ({"num_workers": 2}, "window", 100_000),
    ],
    ids=str,
)
def test_every_sample_comes_once_and_whole(s3, executor, shuffle, num_bytes):
    urls = put_shards(s3, f"whole{num_bytes}", [20, 0, 33, 1], num_bytes=num_bytes)
    data = sw.tar(urls, storage=s3.unhedged)
    # Opened, so that what the loader counts is reading alone.
    assert len(data) == 54
    with loader(data, shuffle=shuffle, **executor) as batches:
        check_epoch(batches, 54, num_bytes=num_bytes)
        stats = batches.stats(reset=True)
        assert stats["requests"] >= 3
        assert stats["bytes_fetched"] >= 54 * num_bytes
        assert stats["bytes"] >= 54 * num_bytes
        # The counts are the process's: a read that another test left behind adds to them.
        assert batches.stats()["requests"] < stats["requests"]


def test_large_payloads_that_are_missing_or_empty_or_asked_for_twice(s3):
    made = {}
    for i in range(12):
        made[i] = {"big": body(i, 300_000), "small": b"%d" % i}
        if i % 3:
            made[i]["sometimes"] = body(100 + i, 100_000) if i % 2 else b""
    shard = tar_bytes(
        (f"{i:03d}.{name}", value) for i, fields in made.items() for name, value in fields.items()
    )
    url = s3.put("odd/000.tar", shard)
    data = sw.tar(url, storage=s3.unhedged)
    asked = [3, 1, 1, 11, 0, 2, 2]
    for index, sample in zip(asked, data.__getitems__(asked), strict=True):
        found = {name: value for name, value in sample.items() if name in ("big", "small")}
        assert found == {name: made[index][name] for name in found}
        assert sample.get("sometimes") == made[index].get("sometimes")


def test_a_single_sample_costs_one_range(s3, counted):
    urls = put_indexed_shards(s3, "single", [50])
    data = sw.tar(urls, storage=s3.unhedged)
    assert len(data) == 50
    counted()
    assert data[31]["bin"] == body(31, 1000)
    assert counted()["requests"] == 1
    assert data[7]["bin"] == body(7, 1000)
    assert counted()["requests"] == 1


def test_neither_pickles_nor_states_nor_messages_hold_a_secret(s3):
    urls = put_shards(s3, "secret", [5])
    data = sw.tar(urls, storage=s3.unhedged)
    with loader(data, num_threads=2) as batches:
        next(iter(batches))
        secret = s3.secret_key
        for text in (
            pickle.dumps(data), pickle.dumps(batches), repr(data), repr(batches.state_dict()),
            repr(batches.stats()), repr(data.source.__dict__),
        ):  # fmt: skip
            assert secret not in str(text)
            assert secret.encode() not in (text if isinstance(text, bytes) else b"")


@pytest.mark.parametrize(
    ("shuffle", "cached", "alone"),
    [("full", False, True), ("window", False, True), (False, False, False), ("full", True, False)],
)
def test_a_shuffled_batch_waits_for_its_own_requests_only(s3, tmp_path, shuffle, cached, alone):
    urls = put_shards(s3, "alone", [8])
    cache = tmp_path / "cache" if cached else None
    data = sw.tar(urls, storage=s3.unhedged, cache=cache, index=str(tmp_path / "index"))
    with loader(data, batch_size=2, shuffle=shuffle) as batches:
        assert (batches._maker.num_coalesced == 1) == alone


def test_the_first_batch_comes_before_the_shard(s3):
    urls = put_indexed_shards(s3, "first", [400], num_bytes=50_000)
    with FaultProxy(s3.endpoint, latency_s=0.02, bandwidth=5e6) as proxy:
        data = sw.tar(urls, storage=s3.behind(proxy.url).config)
        with loader(data, batch_size=16, num_threads=2) as batches:
            batch = next(iter(batches))
            assert bytes(batch["bin"][3]) == body(3, 50_000)
            # Of 20 MB: less than half of it was asked for when the first 0.8 MB were there.
            assert batches.stats()["bytes_fetched"] < 12_000_000


@pytest.mark.parametrize("executor", [{"executor": "inline"}, {"num_threads": 1}], ids=str)
def test_an_iterator_that_was_dropped_leaves_no_request(s3, executor):
    urls = put_indexed_shards(s3, "dropped", [400], num_bytes=50_000)
    loop = runtime(obstore=True).loop
    before = asyncio.all_tasks(loop)
    with FaultProxy(s3.endpoint, latency_s=0.02, bandwidth=4e6) as proxy:
        # Room for a third of the data: what is read is followed by other requests.
        options = {**s3.behind(proxy.url).unhedged, "prefetch_bytes": 6 << 20}
        batches = iter(
            loader(sw.tar(urls, storage=options), batch_size=8, output="numpy", **executor)
        )
        looks = 0
        while not asyncio.all_tasks(loop) - before:
            # The thread that sends it may be late.
            if looks % 20 == 0:
                next(batches)
            looks += 1
            time.sleep(0.005)
    # The store is away: a request that is left is retried for five minutes.
    del batches
    gc.collect()
    wait_for(lambda: not asyncio.all_tasks(loop) - before)


@pytest.mark.parametrize("cached", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_workers_of_a_dropped_loader_end_while_the_store_is_away(s3, tmp_path, cached):
    urls = put_indexed_shards(s3, f"workers-{cached}", [200], num_bytes=50_000)
    loop = runtime(obstore=True).loop
    before = asyncio.all_tasks(loop)
    with FaultProxy(s3.endpoint, latency_s=0.02, bandwidth=5e6) as proxy:
        cache = sw.CacheSettings(tmp_path, block_bytes=256 << 10) if cached else None
        data = sw.tar(urls, storage=s3.behind(proxy.url).config, cache=cache)
        whole = loader(data, batch_size=8, output="numpy", num_workers=1)
        batches = iter(whole)
        next(batches)
        workers = [*whole._maker.executor._session.pool._processes.values()]
    # Workers have tasks, and announced reads, that would be retried for five minutes.
    del data, batches, whole
    gc.collect()
    wait_for(lambda: all(worker.poll() is not None for worker in workers))
    wait_for(lambda: not asyncio.all_tasks(loop) - before)


def test_a_server_of_batches_that_ends_leaves_no_request(s3):
    urls = put_indexed_shards(s3, "served", [200], num_bytes=50_000)
    loop = runtime(obstore=True).loop
    before = asyncio.all_tasks(loop)
    with FaultProxy(s3.endpoint, latency_s=0.02, bandwidth=5e6) as proxy:
        data = sw.tar(urls, storage=s3.behind(proxy.url).config)
        with ExitStack() as stack:
            servers = stack.enter_context(serving(data, num_threads=1))
            service = sw.service(addresses(servers))
            batches = iter(loader(data, batch_size=8, output="numpy", executor=service))
            next(batches)
            del batches
            gc.collect()
            proxy.leave()
    wait_for(lambda: not asyncio.all_tasks(loop) - before)
