"""A cache on disk, under loaders: one download for a node, and nothing of it trusted blindly."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.remote_shards import check_epoch, loader, put_indexed_shards, put_shards
from tests.support.servers import S3Server

EXECUTORS = ({"num_threads": 4}, {"num_workers": 2, "num_threads": 2})


def fetched(s3: S3Server, prefix: str) -> list[str]:
    """Which ranges of shards were sent."""
    return [
        f"{seen['path']} {seen['range']}"
        for seen in s3.requests()
        if seen["method"] == "GET" and seen["path"].endswith(".tar") and prefix in seen["path"]
    ]


@pytest.mark.parametrize("executor", EXECUTORS, ids=["threads", "processes"])
def test_the_second_epoch_asks_the_store_for_nothing(s3, tmp_path, executor):
    prefix = f"again-{len(executor)}"
    urls = put_indexed_shards(s3, prefix, [40] * 5)
    settings = sw.CacheSettings(tmp_path / "cache", block_bytes=32 << 10)
    data = sw.tar(urls, cache=settings, storage=s3.unhedged)
    with loader(data, shuffle=True, **executor) as batches:
        check_epoch(batches, 200)
        first = fetched(s3, f"/{prefix}/")
        assert first
        check_epoch(batches, 200)
        assert fetched(s3, f"/{prefix}/") == first
        stats = batches.stats()
    assert stats["hits"] > 0
    assert stats["misses"] > 0


def test_bytes_that_came_wrong_and_were_cached_are_fetched_once_more(s3, tmp_path, monkeypatch):
    urls = put_shards(s3, "came-wrong", [40])
    build_indexes(urls, options=StorageOptions(**s3.unhedged), digests=True)
    real, flipped = RemoteFile.read_many, []

    def read_many(requests, buffer):
        real(requests, buffer)
        if not flipped:
            # In the payload of the first sample, behind its header.
            flipped.append(600)
            buffer[600] ^= 1

    monkeypatch.setattr(RemoteFile, "read_many", staticmethod(read_many))
    data = sw.tar(urls, cache=tmp_path / "cache", storage=s3.unhedged)
    with loader(data, num_threads=0) as batches:
        check_epoch(batches, 40)
        assert flipped
        num_fetched = len(fetched(s3, "/came-wrong/"))
        check_epoch(batches, 40)
        assert len(fetched(s3, "/came-wrong/")) == num_fetched
