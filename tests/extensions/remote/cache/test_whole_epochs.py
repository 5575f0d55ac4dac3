"""Epochs of which a cache has every block: nothing is announced, no uses are computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.usage import read_usage
from shardwise.extensions.remote.remote_file import RemoteFile
from tests.support.counted_file import CountedFile
from tests.support.forks import in_child
from tests.support.remote_shards import check_epoch, loader, put_indexed_shards
from tests.support.servers import S3Server
from tests.support.waiting import wait_for

BLOCK = 64 << 10
SIZES = [50] * 4
SAMPLE = 10_000


@pytest.fixture(scope="module")
def urls(s3: S3Server) -> list[str]:
    return put_indexed_shards(s3, "whole", SIZES, num_bytes=SAMPLE)


@pytest.fixture
def cache(s3: S3Server, urls: list[str], tmp_path: Path) -> sw.CacheSettings:
    """A cache that was filled by reading: blocks with a tar's closing zeros alone are absent."""
    settings = sw.CacheSettings(tmp_path / "cache", max_bytes=60 * BLOCK, block_bytes=BLOCK)
    data = sw.tar(urls, storage=s3.unhedged, cache=replace(settings))
    with loader(data, shuffle=False, executor="inline") as batches:
        check_epoch(batches, sum(SIZES), num_bytes=SAMPLE)
    assert not read_usage(cache_of(settings).folder).evictions
    return settings


@pytest.fixture
def announced(monkeypatch) -> list[object]:
    """What this process announces to caches."""
    return note_announced(monkeypatch, CachedFile)


def note_announced(monkeypatch, kind: type[CachedFile | RemoteFile]) -> list[object]:
    """Note the owners of what this process announces to files of a kind, from now on."""
    found: list[object] = []
    announce = kind.announce

    def note(file, owner, requests):
        found.append(owner)
        return announce(file, owner, requests)

    monkeypatch.setattr(kind, "announce", note)
    return found


def uses(settings: sw.CacheSettings) -> list[Path]:
    return [*Path(settings.directory, FOLDER, "uses").glob("*")]


def evict(settings: sw.CacheSettings, folder: Path) -> None:
    """Evict as another program does that fills the cache with a file of its own."""

    def child() -> None:
        path = folder / "other"
        path.write_bytes(bytes(50 * BLOCK))
        other = CountedFile("s3://bucket/other", path, folder / "log", etag='"1"')
        assert CachedFile(other, cache_of(replace(settings))).read(0, 50 * BLOCK)

    in_child(child)


@pytest.mark.parametrize(
    "executor", [{"executor": "inline"}, {"num_threads": 2}, {"num_workers": 2}], ids=str
)
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_epochs_from_the_cache_announce_two_requests(
    s3: S3Server, urls, cache, announced, executor, shuffle
):
    data = sw.tar(urls, storage=s3.unhedged, cache=cache)
    before = cache_of(cache).changes
    with loader(data, batch_size=4, shuffle=shuffle, **executor) as batches:
        for epoch in (1, 2):
            check_epoch(batches, sum(SIZES), num_bytes=SAMPLE)
            assert len(announced) <= 2 * epoch
            assert not uses(cache)
        assert batches.stats()["misses"] == 0
    assert cache_of(cache).changes == before


@pytest.mark.parametrize("executor", [{"executor": "inline"}, {"num_workers": 2}], ids=str)
def test_after_an_eviction_in_an_epoch_reads_are_announced_and_expected_again(
    s3: S3Server, urls, cache, announced, executor, tmp_path
):
    # With a transform, batches are not read together.
    data = sw.tar(urls, storage=s3.unhedged, cache=cache).map(dict)
    with loader(data, batch_size=2, shuffle=False, prefetch_factor=1, **executor) as batches:
        under_way, seen = iter(batches), []
        seen += [next(under_way) for _ in range(5)]
        num_announced = len(announced)
        evict(cache, tmp_path)
        assert read_usage(cache_of(cache).folder).evictions
        seen.append(next(under_way))
        wait_for(lambda: uses(cache))
        check_epoch([*seen, *under_way], sum(SIZES), num_bytes=SAMPLE)
        assert len(announced) > num_announced + 9
        # The next epoch is read and announced as its cache has need, too.
        check_epoch(batches, sum(SIZES), num_bytes=SAMPLE)


def test_a_cache_that_is_removed_in_an_epoch_is_filled_again(s3: S3Server, urls, cache, tmp_path):
    data = sw.tar(urls, storage=s3.unhedged, cache=cache)
    with loader(data, batch_size=2, shuffle=False, num_threads=2) as batches:
        under_way = iter(batches)
        seen = [next(under_way) for _ in range(5)]
        (tmp_path / "cache").rename(tmp_path / "gone")
        check_epoch([*seen, *under_way], sum(SIZES), num_bytes=SAMPLE)


@pytest.mark.parametrize(
    "executor", [{"executor": "inline"}, {"num_threads": 2}, {"num_workers": 2}], ids=str
)
def test_a_part_that_is_read_through_another_cache_is_announced_all_the_same(
    s3: S3Server, urls, cache, announced, executor, tmp_path
):
    # The first requests are of the part whose cache has all.
    whole = sw.tar(urls, storage=s3.unhedged, cache=cache)
    empty = sw.CacheSettings(tmp_path / "empty", max_bytes=60 * BLOCK, block_bytes=BLOCK)
    data = sw.concat([whole, sw.tar(urls, storage=s3.unhedged, cache=empty)]).map(dict)
    with loader(data, batch_size=2, shuffle=False, prefetch_factor=1, **executor) as batches:
        assert sum(len(batch["bin"]) for batch in batches) == 2 * sum(SIZES)
    assert len(announced) > 2 + sum(SIZES) // 4


def test_a_part_without_a_cache_is_announced_all_the_same(s3: S3Server, urls, cache, monkeypatch):
    found = note_announced(monkeypatch, RemoteFile)
    parts = [sw.tar(urls, storage=s3.unhedged, cache=each) for each in (cache, None)]
    data = sw.concat(parts).map(dict)
    with loader(data, batch_size=2, shuffle=False, num_threads=2) as batches:
        assert sum(len(batch["bin"]) for batch in batches) == 2 * sum(SIZES)
    assert len(found) > sum(SIZES) // 4


def test_a_cache_whose_numbers_cannot_be_read_does_not_end_an_epoch(s3: S3Server, urls, cache):
    data = sw.tar(urls, storage=s3.unhedged, cache=cache)
    with loader(data, batch_size=2, shuffle=False, executor="inline") as batches:
        under_way = iter(batches)
        seen = [next(under_way) for _ in range(5)]
        ledger = Path(cache.directory, FOLDER, "ledger")
        ledger.unlink()
        ledger.mkdir()
        check_epoch([*seen, *under_way], sum(SIZES), num_bytes=SAMPLE)
