"""Each byte leaves the store once: counted by the server, over ranks, executors and epochs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import shardwise as sw
from tests.support.remote_shards import loader, put_indexed_shards
from tests.support.servers import S3Server

WORLD = 3
SAMPLE_BYTES = 60_000
SIZES = [40] * 4


@pytest.fixture(scope="module")
def urls(s3: S3Server) -> list[str]:
    return put_indexed_shards(s3, "planned", SIZES, num_bytes=SAMPLE_BYTES)


def sent(s3: S3Server) -> int:
    """Bytes of shards that the store sent."""
    return sum(
        seen["num_bytes"]
        for seen in s3.requests()
        if seen["method"] == "GET"
        and seen["path"].partition("?")[0].endswith(".tar")
        and "/planned/" in seen["path"]
    )


def read_epoch(loaders: list[sw.DataLoader]) -> None:
    """One epoch of all ranks, which read side by side."""
    seen = []
    for step in itertools.zip_longest(*loaders):
        for batch in step:
            seen += [] if batch is None else batch["__index__"].tolist()
    assert sorted(seen) == list(range(sum(SIZES)))


EXECUTORS = (
    {"executor": "inline"},
    {"num_threads": 2},
    pytest.param({"num_workers": 2}, marks=pytest.mark.long),
)


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.long), "window", "full"])
def test_ranks_without_a_cache_fetch_what_they_use(s3: S3Server, urls, shuffle, executor):
    data = sw.tar(urls, storage=s3.unhedged).select("bin")
    assert len(data) == sum(SIZES)  # opened
    before = sent(s3)
    ranks = [
        loader(data, batch_size=8, shuffle=shuffle, rank=rank, world_size=WORLD, **executor)
        for rank in range(WORLD)
    ]
    read_epoch(ranks)
    used = sum(SIZES) * SAMPLE_BYTES
    assert used <= sent(s3) - before <= 1.05 * used
    for each in ranks:
        each.close()


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_ranks_that_share_a_cache_fetch_the_data_once(
    s3: S3Server, urls, tmp_path, shuffle, executor
):
    cache = sw.CacheSettings(tmp_path / "cache", block_bytes=256 << 10)
    data = sw.tar(urls, storage=s3.unhedged, cache=cache)
    assert len(data) == sum(SIZES)  # opened
    before = sent(s3)
    ranks = [
        loader(data, batch_size=8, shuffle=shuffle, rank=rank, world_size=WORLD, **executor)
        for rank in range(WORLD)
    ]
    read_epoch(ranks)
    stored = int(data.manifest.shard_bytes.sum())
    first = sent(s3) - before
    assert first <= 1.03 * stored
    read_epoch(ranks)
    assert sent(s3) - before - first <= 0.03 * stored
    found = [each.stats()["bytes_from"] for each in ranks]
    assert all(each["disk"] > 0 and each["peers"] == 0 for each in found)
    for each in ranks:
        each.close()


def test_reads_are_announced_once_and_a_batch_of_any_kind_is_right(s3: S3Server, urls):
    storage = s3.unhedged
    one, two = (sw.tar(urls[at], storage=storage).select("bin") for at in (0, 1))
    subset = sw.tar(urls, storage=storage).select("bin").subset(np.arange(0, 160, 3))
    for data in (sw.concat([one, two]), sw.mix({"a": (one, 0.5), "b": (two, 0.5)}), subset):
        assert len(data)  # opened
        before = sent(s3)
        with loader(data, batch_size=8, executor="inline") as batches:
            rows = sum(len(batch["__index__"]) for batch in batches)
        used = rows * SAMPLE_BYTES
        assert rows
        assert used <= sent(s3) - before <= 1.05 * used
