"""Eviction by the next use: what loaders expect, over processes, and what no loader knows of."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.storage.options import CacheSettings
from tests.support.counted_file import CountedFile
from tests.support.forks import in_child
from tests.support.remote_shards import loader, put_indexed_shards
from tests.support.servers import S3Server
from tests.support.waiting import wait_for

BLOCK = 64 << 10
NUM_BLOCKS = 100
DATA = random.Random(2).randbytes(NUM_BLOCKS * BLOCK)
URL = "s3://bucket/000.tar"


@pytest.fixture
def file(tmp_path: Path) -> CachedFile:
    """A file of 100 blocks behind a cache that has room for about 30 of them."""
    path = tmp_path / "000.tar"
    path.write_bytes(DATA)
    settings = CacheSettings(tmp_path / "cache", max_bytes=34 * BLOCK, block_bytes=BLOCK)
    return CachedFile(CountedFile(URL, path, tmp_path / "log", etag='"1"'), cache_of(settings))


def read(file: CachedFile, *numbers: int) -> None:
    for number in numbers:
        assert file.read(number * BLOCK, 100) == DATA[number * BLOCK :][:100]


def cached(tmp_path: Path) -> set[int]:
    names = (path.stem for path in (tmp_path / "cache" / FOLDER / "blocks").iterdir())
    return {int(name[-8:], 16) for name in names}


def expect(file: CachedFile, steps: dict[int, list[int]]):
    numbers = np.array([number for number, at in steps.items() for _ in at], np.int64)
    at = np.array([step for each in steps.values() for step in each], np.int64)
    found = file.cache.expect([URL], np.zeros(len(numbers), np.int64), numbers, at)
    assert found is not None
    return found


def test_the_block_whose_next_use_is_farthest_goes_first(file: CachedFile, tmp_path: Path) -> None:
    # Block n is read at step n, and again at step 1000 - n: the first ones are wanted last.
    expected = expect(file, {n: [n, 1000 - n] for n in range(NUM_BLOCKS)})
    for number in range(60):
        read(file, number)
        expected.move(number + 1)
    kept = cached(tmp_path)
    assert 20 <= len(kept) <= 34
    # The heap is rebuilt now and then: the order is nearly that of the next uses.
    assert np.median(sorted(kept)) > 35
    expected.close()
    # Nobody expects anything: the least recently used go first.
    read(file, *range(60, 100))
    assert np.median(sorted(cached(tmp_path))) > 75


def test_what_is_wanted_later_than_all_others_is_read_past_the_cache(file, tmp_path) -> None:
    expected = expect(file, {n: [n, 200 + n] for n in range(NUM_BLOCKS)})
    read(file, *range(60))
    first = cached(tmp_path)
    # The first ones come again soonest: they stay, and what does not fit costs its own bytes only.
    assert set(range(20)) <= first
    asked = file._file.reads()
    assert {length for _, length in asked} == {BLOCK, 100}
    expected.close()


def test_another_process_evicts_by_the_same_uses(file: CachedFile, tmp_path: Path) -> None:
    expected = expect(file, {n: [n, 200 + n] for n in range(NUM_BLOCKS)})

    def child() -> None:
        again = CachedFile(file._file, cache_of(CacheSettings(
            tmp_path / "cache", max_bytes=34 * BLOCK, block_bytes=BLOCK,
        )))  # fmt: skip
        read(again, *range(60))

    in_child(child)
    assert set(range(20)) <= cached(tmp_path)
    expected.close()


def test_the_uses_of_a_loader_that_is_gone_are_removed(file: CachedFile, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / FOLDER / "uses"

    def child() -> None:
        expect(file, {n: [200 + n] for n in range(NUM_BLOCKS)})

    in_child(child)
    assert list(folder.iterdir())
    # They are ignored, and removed when the next loader of this cache starts.
    read(file, *range(60))
    assert np.median(sorted(cached(tmp_path))) > 35
    expect(file, {0: [1]}).close()
    assert not list(folder.iterdir())


def test_a_cache_below_the_open_windows_is_told_with_the_size_that_would_do(
    s3: S3Server, tmp_path, caplog
) -> None:
    urls = put_indexed_shards(s3, "small-cache", [60] * 4, num_bytes=20_000)

    def warnings_of(max_bytes: int, name: str) -> list[str]:
        caplog.clear()
        cache = CacheSettings(tmp_path / name, max_bytes=max_bytes, block_bytes=32 << 10)
        data = sw.tar(urls, storage=s3.config, cache=cache)
        with caplog.at_level(logging.WARNING, "shardwise"), loader(data, shuffle="full") as batches:
            under_way = iter(batches)
            next(under_way)
            uses = tmp_path / name / FOLDER / "uses"
            wait_for(lambda: uses.exists() and any(uses.iterdir()))
            under_way.close()
        return [each.getMessage() for each in caplog.records if "has room for" in each.getMessage()]

    (told,) = warnings_of(2_000_000, "small")
    size = int(told.rpartition("max_bytes=")[2].rstrip(")"))
    assert 4_800_000 < size < 8_000_000
    assert not warnings_of(size, "enough")
