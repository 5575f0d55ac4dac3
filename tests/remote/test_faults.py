"""Epochs over bad lines and bad servers: every sample with its right bytes, or one clear error."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator

import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.storage import StorageOptions
from tests.support.fault_proxy import FaultProxy
from tests.support.remote_shards import (
    check_epoch,
    loader,
    numbered_tar,
    put_shards,
    replace_object,
)
from tests.support.servers import S3Server, s3_gateway

BY_EXECUTOR = pytest.mark.parametrize(
    "executor",
    [
        {"num_threads": 4},
        pytest.param({"num_workers": 2, "num_threads": 2}, marks=pytest.mark.long),
    ],
    ids=["threads", "processes"],
)
# 100 shards of three samples: as many openings, indexes and ends of shards as of large ones.
SIZES = [3] * 100


def reached(server: S3Server, **options: object) -> StorageOptions:
    return StorageOptions(config=server.config, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shards(s3, tmp_path_factory) -> list[str]:
    """100 shards with indexes beside them."""
    urls = put_shards(s3, "many", SIZES)
    folder = tmp_path_factory.mktemp("shards")
    for number, url in enumerate(urls):
        # Made here from the same bytes, which takes a tenth of the time.
        data = numbered_tar(3 * number, 3, 1000)
        path = folder / f"{number:03d}.tar"
        path.write_bytes(data)
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        index = build_index(str(path)).of_version(0, etag)
        s3.put(f"{url.removeprefix(s3.url(''))}.swi", index.to_bytes())
    return urls


# Each fault by itself is in tests/remote/test_streams.py.
FAULTS = {"cut_share": 0.06, "error_share": 0.1, "stall_share": 0.02, "latency_s": 0.01}


@BY_EXECUTOR
def test_an_epoch_over_a_bad_line_has_every_sample(s3, shards, executor):
    with FaultProxy(s3.endpoint, seed=7, **FAULTS) as proxy:
        options = reached(s3.behind(proxy.url), attempt_timeout_s=2.0)
        data = sw.tar(shards, storage=options)
        waits = []

        def timed(batches: Iterator[object]) -> Iterator[object]:
            began = time.monotonic()
            for batch in batches:
                waits.append(time.monotonic() - began)
                yield batch
                began = time.monotonic()

        with loader(data, shuffle=True, **executor) as batches:
            check_epoch(timed(iter(batches)), sum(SIZES))  # type: ignore[arg-type]
            stats = batches.stats()
        counts = proxy.counts()
    assert stats["requests"] >= 100
    assert stats["bytes_fetched"] > 0
    assert counts["cut"]
    assert counts["error"]
    assert counts["stall"]
    assert stats["retries"] > 0
    # Far from what a stall without an end would take, on a machine that does much else.
    assert sorted(waits)[int(0.99 * (len(waits) - 1))] < 20


@pytest.mark.parametrize(
    ("faults", "kind", "told"),
    [
        ({"error_share": 1.0, "error_status": 403}, sw.StorageError, "HTTP 403"),
        ({"error_share": 1.0, "error_status": 404}, sw.MissingShardError, "HTTP 404"),
        ({"stall_share": 1.0, "stall_head": True}, sw.StorageError, "request_timeout_s=3"),
    ],
    ids=["forbidden", "gone", "silent"],
)
def test_a_store_that_fails_for_good_in_the_middle_of_an_epoch_ends_it(
    s3, shards, faults, kind, told
):
    with FaultProxy(s3.endpoint) as proxy:
        # Opening 30 shards is under the same limit, on a machine that may do much else.
        options = reached(
            s3.behind(proxy.url), attempt_timeout_s=2.0, request_timeout_s=3.0, prefetch_bytes=0
        )
        with loader(sw.tar(shards[:30], storage=options), batch_size=3, num_threads=2) as batches:
            given = iter(batches)
            next(given)
            proxy.change(**faults)
            with pytest.raises(kind, match=told) as caught:
                list(given)
    assert re.search(r"s3://bucket-\d+/many/\d+\.tar", str(caught.value))


def test_a_server_without_etags_is_read(tmp_path):
    (tmp_path / "s3").mkdir()
    with s3_gateway(tmp_path / "s3", etag=False) as server:
        urls = put_shards(server, "plain", [10, 10])
        with loader(sw.tar(urls, storage=server.config), num_threads=2) as batches:
            check_epoch(batches, 20)


@BY_EXECUTOR
def test_a_shard_that_is_replaced_during_an_epoch_ends_it(s3, executor):
    # So many that the loader can't have read the last ones when the first batch is there.
    urls = put_shards(s3, f"swapped-{len(executor)}", [40] * 40, num_bytes=10_000)
    options = reached(s3, prefetch_bytes=0)
    with loader(sw.tar(urls, storage=options), batch_size=4, **executor) as batches:
        given = iter(batches)
        next(given)
        # As long as the one before: nothing but the version tells them apart.
        replace_object(s3, urls[35], numbered_tar(5000, 40, 10_000))
        seen = []
        with pytest.raises(sw.StaleIndexError, match="replaced while it was in use") as caught:
            for batch in given:
                seen += batch["__index__"].tolist()
    assert caught.value.url == urls[35]
    assert not set(seen) & set(range(1400, 1440))


@pytest.mark.parametrize("shuffle", [False, "full"])
def test_damage_at_the_source_is_an_error_with_its_place(s3, shuffle):
    sound = numbered_tar(0, 20, 1000)
    url = s3.put(f"flipped-{shuffle}/000.tar", sound)
    (result,) = build_indexes(url, options=reached(s3), digests=True)
    assert result.error is None
    data = sw.tar(url, storage=s3.config)
    check_epoch(loader(data, num_threads=0, shuffle=shuffle), 20)
    damaged = bytearray(sound)
    place = sound.index(b"s00000013.bin") + 512
    damaged[place + 100] ^= 4
    # Silently, as a failing disk does it: the index is said to be of this version.
    replace_object(s3, url, bytes(damaged))
    index = data.source.shards.index(0)
    from shardwise.sources.tar.index.index_store import IndexStore

    store = IndexStore(options=reached(s3))
    now = store.stat(url)
    store.publish(url, index.of_version(now.mtime_ns, now.etag))
    with pytest.raises(sw.DataError, match="CRC-32 differs") as caught:
        check_epoch(loader(sw.tar(url, storage=s3.config), num_threads=0, shuffle=shuffle), 20)
    assert (caught.value.url, caught.value.key) == (url, "s00000013")
    assert caught.value.offset == place
    with loader(sw.tar(url, storage=s3.config), on_error="skip", num_threads=2) as batches:
        assert sum(len(batch["__key__"]) for batch in batches) == 19
        assert batches.stats()["skipped"] == 1
