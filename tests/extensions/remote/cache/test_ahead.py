"""Announced blocks: fetched before their readers, each once, and left to them where that fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache import cache as cache_module
from shardwise.extensions.remote.cache.block_file import BlockLock
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.storage.byte_ranges import ByteRange
from shardwise.storage.file_pool import FilePool, PoolRanges, Upcoming
from shardwise.storage.options import CacheSettings, StorageOptions
from shardwise.storage.protocol import ReadRequest
from tests.support.counted_file import CountedFile
from tests.support.forks import in_child
from tests.support.waiting import wait_for

BLOCK = 64 << 10
DATA = random.Random(5).randbytes(10 * BLOCK - 777)

Make = Callable[..., CachedFile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes an opened file behind a cache in `tmp_path/cache`."""

    def make(kind: type[CountedFile] = CountedFile, **options: object) -> CachedFile:
        path = tmp_path / "000.tar"
        path.write_bytes(DATA)
        counted = kind("s3://bucket/000.tar", path, tmp_path / "log", etag='"1"')
        limits = {"max_bytes": 100_000_000, "block_bytes": BLOCK, **options}
        file = CachedFile(counted, cache_of(CacheSettings(tmp_path / "cache", **limits)))
        file.open()
        return file

    return make


def announce(file: CachedFile, owner: object, *spans: tuple[int, int]) -> None:
    """Announce ranges, and let the threads that fetch them end."""
    ranges = [ByteRange(start, stop, 0) for start, stop in spans]
    file.announce(owner, [ReadRequest(file, ranges)])
    for helper in threading.enumerate():
        if helper.name == "shardwise-cache":
            helper.join(60)


def published(folder: Path) -> list[int]:
    names = (path.stem for path in (folder / "cache" / FOLDER / "blocks").glob("*"))
    return sorted(int(name[-8:], 16) for name in names)


def test_announced_blocks_are_there_before_they_are_read(make: Make, tmp_path: Path) -> None:
    file = make()
    announce(file, "owner", (0, 10), (5 * BLOCK, 7 * BLOCK))
    assert published(tmp_path) == [0, 5, 6]
    before = file._file.reads()
    assert file.read(5 * BLOCK, 2 * BLOCK) == DATA[5 * BLOCK : 7 * BLOCK]
    assert file._file.reads() == before
    # Blocks that are there, and those that are announced twice, are fetched once.
    announce(file, "other", (0, 8 * BLOCK))
    announce(file, "third", (0, 8 * BLOCK))
    assert set(file._file.reads().values()) == {1}


def test_blocks_that_others_fetch_are_left_to_them(make: Make, tmp_path: Path) -> None:
    file = make()
    block = file._block(file._pin_version(), 4, [])
    lock = block.cache.lock_block(block.name, block.info)
    assert isinstance(lock, BlockLock)
    announce(file, "owner", (0, len(DATA)))
    assert published(tmp_path) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    block.cache.abandon(lock)


def test_what_is_announced_does_not_evict_what_was_announced_before(make: Make, tmp_path: Path):
    # Room for 32 blocks at most: a quarter of them is fetched ahead.
    file = make(max_bytes=32 * BLOCK)
    announce(file, 1, (0, len(DATA)))
    first = published(tmp_path)
    assert 0 < len(first) < 10
    assert first == list(range(len(first)))
    file.withdraw(1)
    announce(file, 2, (9 * BLOCK, len(DATA)))
    assert published(tmp_path) == [*first, 9]


def test_a_failed_fetch_is_left_to_the_reader_and_leaves_no_lock(make: Make, tmp_path: Path):
    class Broken(CountedFile):
        is_away = True

        @staticmethod
        def read_many(requests, buffer):
            if Broken.is_away:
                raise StorageError("away")
            CountedFile.read_many(requests, buffer)

    file = make(Broken)
    announce(file, "owner", (0, len(DATA)))
    assert published(tmp_path) == []
    assert list((tmp_path / "cache" / FOLDER / "parts").iterdir()) == []
    with pytest.raises(StorageError, match="away"):
        file.read(0, 10)
    Broken.is_away = False
    assert file.read(0, len(DATA)) == DATA


def test_a_disk_that_refuses_a_write_costs_that_block_only(make: Make, tmp_path, monkeypatch):
    file = make()
    write_at, broken = cache_module.write_at, []

    def refuse_once(fd: int, data: memoryview, offset: int) -> None:
        if not broken:
            broken.append(fd)
            raise OSError(5, "Input/output error")
        write_at(fd, data, offset)

    monkeypatch.setattr(cache_module, "write_at", refuse_once)
    announce(file, "owner", (0, 4 * BLOCK))
    assert published(tmp_path) == [1, 2, 3]
    assert file.read(0, len(DATA)) == DATA


def test_nothing_is_announced_while_the_cache_has_all_and_again_after_a_miss(make: Make) -> None:
    file = make()
    pool = FilePool(options=StorageOptions(cache=file._cache.settings))
    pool._open.files["s3://bucket/000.tar"] = file

    def reads(number: int) -> list[PoolRanges]:
        return [(pool, [("s3://bucket/000.tar", [number * BLOCK], [BLOCK], 0)])]

    def is_needless_after(*numbers: int) -> bool:
        """Whether requests of these blocks, of which the first is read at once, need the next."""
        upcoming.watch(reads(numbers[0]))
        assert file.read(numbers[0] * BLOCK, 10)
        for number in numbers[1:]:
            assert not upcoming.is_needless
            upcoming.announce(number, reads(number))
        return upcoming.is_needless

    assert file.read(0, 3 * BLOCK)
    upcoming = Upcoming()
    assert is_needless_after(0, 1, 2)
    upcoming.announce("no range", [(pool, [("s3://bucket/000.tar", [], [], 0)])])

    def miss() -> None:
        again = CachedFile(file._file, cache_of(replace(file._cache.settings)))
        assert again.read(8 * BLOCK, 10)

    in_child(miss)
    assert not upcoming.is_needless
    upcoming.announce("more", reads(7))
    wait_for(lambda: file.cache.holds(file._block(file._pin_version(), 7, ()).name))
    # Blocks that are missing, at once or later, and misses of the first request.
    for numbers in ((0, 1, 4), (0, 5, 1), (6, 0, 1)):
        upcoming = Upcoming()
        assert not is_needless_after(*numbers)
        upcoming.close()
