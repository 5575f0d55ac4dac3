"""A cache on disk, under loaders: one download for a node, and nothing of it trusted blindly."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from shardwise.storage.cache import fetch as misses
from tests.support.remote_shards import check_epoch, loader, numbered_tar, put_shards
from tests.support.servers import S3Server

ROOT = Path(__file__).resolve().parents[2]
EXECUTORS = ({"num_threads": 4}, {"num_workers": 2, "num_threads": 2})


def fetched(s3: S3Server, prefix: str) -> list[str]:
    """Which ranges of shards were sent."""
    return [
        f"{seen['path']} {seen['range']}"
        for seen in s3.requests()
        if seen["method"] == "GET" and seen["path"].endswith(".tar") and prefix in seen["path"]
    ]


def indexed(s3: S3Server, prefix: str, sizes: list[int], num_bytes: int = 1000) -> list[str]:
    """Shards with an index beside each."""
    urls = put_shards(s3, prefix, sizes, num_bytes=num_bytes)
    for result in build_indexes(urls, options=StorageOptions(config=s3.config)):
        assert result.error is None
    return urls


@pytest.mark.parametrize("executor", EXECUTORS, ids=["threads", "processes"])
def test_the_second_epoch_asks_the_store_for_nothing(s3, tmp_path, executor):
    prefix = f"again-{len(executor)}"
    urls = indexed(s3, prefix, [40] * 5)
    settings = sw.CacheSettings(tmp_path / "cache", block_bytes=32 << 10)
    data = sw.tar(urls, cache=settings, storage=s3.config)
    with loader(data, shuffle=True, **executor) as batches:
        check_epoch(batches, 200)
        first = fetched(s3, f"/{prefix}/")
        assert first
        check_epoch(batches, 200)
        assert fetched(s3, f"/{prefix}/") == first
        stats = batches.stats()
    assert stats["hits"] > 0
    assert stats["misses"] > 0
    assert stats["degraded"] == 0


RANK = """
import json, sys
import shardwise as sw
from tests.support.remote_shards import body
job = json.loads(sys.argv[1])
if __name__ == "__main__":
    cache = sw.CacheSettings(job["cache"], block_bytes=64 << 10, max_bytes=job["max_bytes"])
    # A second request for a block that is late would count as another one.
    options = {**job["config"], "hedge": False}
    data = sw.tar(job["urls"], cache=cache, storage=options)
    with sw.DataLoader(data, batch_size=16, shuffle="full", seed=job["seed"], num_threads=2,
                       rank=job["rank"], world_size=job["world_size"], timeout=300,
                       output="numpy") as loader:
        seen = []
        for batch in loader:
            for index, found in zip(batch["__index__"].tolist(), batch["bin"]):
                assert bytes(found) == body(index, 1000), index
                seen.append(index)
        assert loader.stats()["degraded"] == 0
    print(json.dumps(seen))
"""


def start(job: dict) -> subprocess.Popen[bytes]:
    """A rank, as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", RANK, json.dumps(job)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def seen_by(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """The samples of some ranks, which must end well."""
    found = []
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        found += json.loads(output)
    return found


def test_ranks_that_share_a_cache_fetch_each_block_once(s3, tmp_path):
    urls = indexed(s3, "ranks", [64] * 5)
    job = {
        "urls": urls, "config": s3.config, "cache": str(tmp_path / "cache"), "seed": 3,
        "max_bytes": 1 << 30, "world_size": 4,
    }  # fmt: skip
    before = Counter(fetched(s3, "/ranks/"))
    found = seen_by([start({**job, "rank": rank}) for rank in range(4)])
    assert sorted(found) == list(range(320))
    asked = Counter(fetched(s3, "/ranks/")) - before
    assert asked
    assert set(asked.values()) == {1}


def test_a_cache_smaller_than_one_shard_completes(s3, tmp_path):
    urls = indexed(s3, "small", [64] * 4)
    cache = tmp_path / "cache"
    job = {
        "urls": urls, "config": s3.config, "cache": str(cache), "seed": 3,
        "max_bytes": len(numbered_tar(0, 64, 1000)) // 2, "world_size": 1, "rank": 0,
    }  # fmt: skip
    assert sorted(seen_by([start(job)])) == list(range(256))
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < 200_000


def test_a_rank_that_is_killed_leaves_nothing_that_the_next_run_trusts(s3, tmp_path):
    urls = indexed(s3, "killed", [64] * 5)
    job = {
        "urls": urls, "config": s3.config, "cache": str(tmp_path / "cache"), "rank": 0,
        "max_bytes": 1 << 30, "world_size": 1,
    }  # fmt: skip
    for run in range(4):
        process = start({**job, "seed": run})
        before = len(fetched(s3, "/killed/"))
        # In the middle of its downloads, each time at another place.
        while process.poll() is None and len(fetched(s3, "/killed/")) < before + 1 + run:
            time.sleep(0.002)
        process.kill()
        process.communicate(timeout=60)
    assert sorted(seen_by([start({**job, "seed": 9})])) == list(range(320))


def test_a_byte_that_is_flipped_in_the_cache_is_fetched_again(s3, tmp_path):
    urls = indexed(s3, "flipped", [40] * 2)
    data = sw.tar(urls, cache=tmp_path / "cache", storage=s3.config)
    check_epoch(loader(data, num_threads=0), 80)
    num_fetched = len(fetched(s3, "/flipped/"))
    blocks = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size > 4096]
    assert blocks
    for path in blocks:
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(damaged)
    again = sw.tar(urls, cache=tmp_path / "cache", storage=s3.config)
    with loader(again, num_threads=2) as batches:
        check_epoch(batches, 80)
        assert batches.stats()["misses"] > 0
    assert len(fetched(s3, "/flipped/")) > num_fetched


def test_bytes_that_came_wrong_and_were_cached_are_fetched_once_more(s3, tmp_path, monkeypatch):
    urls = put_shards(s3, "came-wrong", [40])
    build_indexes(urls, options=StorageOptions(config=s3.config), digests=True)
    real, flipped = misses.read_direct, []

    def read_direct(reads, buffer):
        real(reads, buffer)
        if not flipped:
            # In the payload of the first sample, behind its header.
            flipped.append(600)
            buffer[600] ^= 1

    monkeypatch.setattr(misses, "read_direct", read_direct)
    data = sw.tar(urls, cache=tmp_path / "cache", storage=s3.config)
    with loader(data, num_threads=0) as batches:
        check_epoch(batches, 40)
        assert flipped
        num_fetched = len(fetched(s3, "/came-wrong/"))
        check_epoch(batches, 40)
        assert len(fetched(s3, "/came-wrong/")) == num_fetched


def test_a_cache_that_cannot_be_written_is_done_without(s3, tmp_path, caplog):
    urls = indexed(s3, "nowhere", [40] * 2)
    (tmp_path / "file").write_text("no directory")
    with loader(
        sw.tar(urls, cache=tmp_path / "file" / "cache", storage=s3.config), num_threads=2
    ) as batches:
        check_epoch(batches, 80)
        assert batches.stats()["degraded"] > 0
    assert "cache" in caplog.text
