"""A file behind the cache: right bytes, one request a block, versions, damage, full disks."""

from __future__ import annotations

import logging
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache import cache as store
from shardwise.extensions.remote.cache.block_file import (
    BlockInfo,
    BlockLock,
    LockDenied,
    block_name,
    chunk_digests,
    holds_bytes,
    version_id,
)
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.usage import read_usage
from shardwise.storage import FileStat
from shardwise.storage.byte_ranges import ByteRange
from shardwise.storage.options import CacheSettings
from shardwise.storage.protocol import ReadRequest
from tests.support.counted_file import CountedFile
from tests.support.forks import in_child
from tests.support.io_counts import counted_io
from tests.support.properties import examples
from tests.support.threads import at_once

BLOCK = 64 << 10
SIZE = 300_000
DATA = random.Random(1).randbytes(SIZE)

Make = Callable[..., CachedFile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes files behind a cache in `tmp_path/cache`; each call is another process's view."""

    def make(name: str = "train/000.tar", data: bytes = DATA, **options: object) -> CachedFile:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
        own = {key: options.pop(key) for key in ("etag", "mtime_ns") if key in options}
        counted = CountedFile(f"s3://bucket/{name}", path, tmp_path / "log", **own)
        limits = {"max_bytes": 10_000_000, "block_bytes": BLOCK, **options}
        return CachedFile(counted, cache_of(CacheSettings(tmp_path / "cache", **limits)))

    return make


def blocks(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / FOLDER / "blocks").iterdir())


def test_each_block_is_fetched_once_and_then_read_from_disk(make: Make, tmp_path: Path) -> None:
    file = make()
    with counted_io() as counts:
        assert file.read(0, SIZE) == DATA
        assert counts == {"misses": 5, "waits": 1}
        for _ in range(2):
            assert file.read(0, SIZE) == DATA
        assert counts == {"misses": 5, "waits": 1, "hits": 10, "disk_bytes": 600_000}
    again = make()
    assert again.read(100, 200) == DATA[100:300]
    assert again._file.reads() == {(at, min(BLOCK, SIZE - at)): 1 for at in range(0, SIZE, BLOCK)}
    assert len(blocks(tmp_path)) == 5


def test_a_block_that_is_published_while_it_is_looked_for_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = BlockInfo("s3://bucket/a", "v", SIZE, 0, BLOCK)
    name = block_name(version_id(info.url, info.version, SIZE, BLOCK), 0)
    mine, theirs = (
        cache_of(CacheSettings(tmp_path / "cache", block_bytes=BLOCK)) for _ in range(2)
    )
    lock = theirs.lock_block(name, info)
    assert isinstance(lock, BlockLock)
    looked, payload = [], memoryview(DATA)[:BLOCK]

    def publish_behind(path: str) -> bool:
        found = holds_bytes(path)
        if not looked:
            looked.append(path)
            theirs.write(lock, payload, 0)
            theirs.publish(lock, chunk_digests(payload))
        return found

    monkeypatch.setattr(store, "holds_bytes", publish_behind)
    assert mine.lock_block(name, info) is LockDenied.BUSY
    assert mine.lock_block(name, info) is LockDenied.THERE


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.integers(0, SIZE).flatmap(
            lambda at: st.tuples(st.just(at), st.integers(0, min(SIZE - at, 150_000)))
        ),
        max_size=6,
    ),
    st.integers(0, 50),
)
def test_any_ranges_are_the_files_bytes(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], begin: int
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "a").write_bytes(DATA)
    counted = CountedFile("s3://b/a", folder / "a", folder / "log")
    # Room for two blocks: whatever is wanted goes past the cache, through it, or out of it.
    cache = cache_of(CacheSettings(folder / "c", max_bytes=170_000, block_bytes=BLOCK))
    file = CachedFile(counted, cache)
    for _ in range(2):
        offsets, ends, at = [], [], begin
        for offset, length in ranges:
            at += length
            offsets.append(offset)
            ends.append(at)
        buffer = bytearray(at + 7)
        file.read_spans(offsets, ends, memoryview(buffer), begin)
        wanted = b"".join(DATA[offset : offset + length] for offset, length in ranges)
        assert bytes(buffer) == bytes(begin) + wanted + bytes(7)


def test_several_files_are_read_in_one_call(make: Make) -> None:
    other = random.Random(2).randbytes(100_000)
    a, b = make("a"), make("b", other)
    assert a.read(0, 10) == DATA[:10]
    buffer = bytearray(60_000)
    requests = [
        ReadRequest(a, [ByteRange(0, 10_000, 0), ByteRange(70_000, 80_000, 10_000)]),
        ReadRequest(b, [ByteRange(50_000, 90_000, 20_000)]),
    ]
    CachedFile.read_many(requests, memoryview(buffer))
    assert bytes(buffer) == DATA[:10_000] + DATA[70_000:80_000] + other[50_000:90_000]
    CachedFile.read_many([], memoryview(b""))


def test_files_of_the_same_name_in_two_folders_are_two_files(make: Make) -> None:
    other = bytes(reversed(DATA))
    train = make("train/000.tar", etag='"same"', mtime_ns=1)
    val = make("val/000.tar", other, etag='"same"', mtime_ns=1)
    for _ in range(2):
        assert train.read(0, SIZE) == DATA
        assert val.read(0, SIZE) == other


def test_another_etag_is_another_file(make: Make, tmp_path: Path) -> None:
    assert make().read(0, SIZE) == DATA
    new = bytes(reversed(DATA))
    (tmp_path / "train/000.tar").write_bytes(new)
    assert make().read(0, SIZE) == new
    assert len(blocks(tmp_path)) == 10


def test_a_file_replaced_in_the_middle_raises_and_is_never_mixed(
    make: Make, tmp_path: Path
) -> None:
    file = make()
    assert file.read(0, 10) == DATA[:10]
    (tmp_path / "train/000.tar").write_bytes(bytes(reversed(DATA)))
    with pytest.raises(StaleIndexError):
        file.read(BLOCK, 10)
    # What was kept is of the version that the reader asks for.
    assert file.read(20, 10) == DATA[20:30]


def test_a_pinned_version_needs_no_question(make: Make) -> None:
    file = make(etag='"1"')
    file.pin(FileStat(SIZE, file._file._now().mtime_ns, '"1"'))
    assert file.read(0, SIZE) == DATA
    assert file.read(0, SIZE) == DATA
    assert file._file.stats() == 0
    assert file.stat() == file._file._now()


def test_without_an_etag_the_time_is_the_version_and_without_both_nothing_is_kept(
    make: Make, tmp_path: Path
) -> None:
    assert make(etag="").read(0, SIZE) == DATA
    assert make(etag="").read(0, SIZE) == DATA
    assert len(blocks(tmp_path)) == 5
    file = make("other", etag="", mtime_ns=0)
    for _ in range(2):
        assert file.read(5, 10) == DATA[5:15]
    assert file._file.reads() == {(5, 10): 2}
    assert len(blocks(tmp_path)) == 5
    assert file.forget(0, 10) is False


def test_a_range_behind_the_end_is_the_files_own_error(make: Make) -> None:
    file = make()
    with pytest.raises(DataError, match="ended at byte 300000"):
        file.read(SIZE - 10, 20)
    with pytest.raises(ValueError, match="offset=-1"):
        file.read(-1, 2)
    assert file.read(SIZE, 0) == b""


def test_a_failed_fetch_is_raised_and_leaves_nothing(make: Make, tmp_path: Path) -> None:
    file = make()
    file.open()
    (tmp_path / "train/000.tar").unlink()
    file._file.pinned = None
    for _ in range(2):
        with pytest.raises(MissingShardError):
            file.read(0, SIZE)
    assert blocks(tmp_path) == []
    assert list((tmp_path / "cache" / FOLDER / "parts").iterdir()) == []
    assert read_usage(file._cache.folder).num_bytes == 0


@pytest.mark.parametrize("place", [0, 70_000, BLOCK - 1, -1, -20, -40])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_flipped_byte_is_fetched_once_more_and_counted(
    make: Make, tmp_path: Path, place: int, is_new: bool
) -> None:
    file = make()
    assert file.read(0, SIZE) == DATA
    path = blocks(tmp_path)[0] if place < BLOCK else blocks(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[place % BLOCK if place >= 0 else place] ^= 1
    path.write_bytes(data)
    with counted_io() as found:
        if is_new:
            file = make()
        for _ in range(2):
            assert file.read(0, SIZE) == DATA
    if place >= 0 or is_new:
        assert (found["damaged"], found["misses"], found["hits"]) == (1, 1, 9)
        assert sorted(file._file.reads().values()) == [1, 1, 1, 1, 2]
    else:
        # The trailer of an open block is not needed any more.
        assert found == {"hits": 10, "disk_bytes": 600_000}


@pytest.mark.parametrize("num_bytes", [0, 10, 40_000, BLOCK, BLOCK + 40])
def test_a_cut_block_is_fetched_once_more(make: Make, tmp_path: Path, num_bytes: int) -> None:
    assert make().read(0, SIZE) == DATA
    os.truncate(blocks(tmp_path)[0], num_bytes)
    assert make().read(0, SIZE) == DATA
    assert sorted(make()._file.reads().values()) == [1, 1, 1, 1, 2]
    assert make().read(0, SIZE) == DATA


def test_a_block_under_another_name_is_not_trusted(make: Make, tmp_path: Path) -> None:
    assert make().read(0, SIZE) == DATA
    first, second = blocks(tmp_path)[:2]
    second.write_bytes(first.read_bytes())
    assert make().read(0, SIZE) == DATA


def test_what_turns_out_to_be_wrong_is_forgotten_and_fetched_again(make: Make) -> None:
    file = make()
    assert file.read(0, SIZE) == DATA
    assert file.forget(70_000, 10) is True
    assert file.forget(70_000, 10) is False
    assert file.read(0, SIZE) == DATA
    assert file._file.reads()[BLOCK, BLOCK] == 2


def test_threads_share_one_fetch_a_block(make: Make) -> None:
    file = make()

    def read(number: int) -> None:
        order = list(range(0, SIZE, 10_000))
        random.Random(number).shuffle(order)
        for at in order:
            assert file.read(at, 10_000) == DATA[at : at + 10_000]

    at_once(read, 8)
    assert set(file._file.reads().values()) == {1}


def test_least_recently_used_blocks_go_first(make: Make, tmp_path: Path) -> None:
    room = (16_384 + 3 * (BLOCK + 4096 + 128)) * 16 // 15 + 1
    options = {"max_bytes": room, "block_bytes": BLOCK}
    # 64 KiB blocks would be halved under so small a limit.
    file = make(**options)
    cache = file._cache
    object.__setattr__(cache.settings, "block_bytes", BLOCK)

    def use(block: int) -> None:
        assert file.read(block * BLOCK, 10) == DATA[block * BLOCK :][:10]
        for path in blocks(tmp_path):
            # As if a second had gone by.
            found = path.stat()
            os.utime(path, ns=(found.st_atime_ns - 10**9, found.st_mtime_ns))
        for block_ in cache._open_blocks.values():
            block_._touched_ns = 0

    def kept() -> list[int]:
        return [int(path.stem[-8:], 16) for path in blocks(tmp_path)]

    for block in (0, 1, 2, 0, 3):
        use(block)
    assert kept() == [0, 2, 3]
    # What was used since the order was looked at last has its turn later.
    for block in (2, 4):
        use(block)
    assert kept() == [2, 3, 4]
    assert len(file._file.reads()) == sum(file._file.reads().values()) == 5


def test_a_limit_smaller_than_a_file_or_a_block_is_kept_and_completes(
    make: Make, tmp_path: Path
) -> None:
    for limit in (1, 10_000, 60_000, 200_000):
        file = make(max_bytes=limit)
        for at in range(0, SIZE, 10_000):
            assert file.read(at, 10_000) == DATA[at : at + 10_000]
            folder = tmp_path / "cache"
            files = [path for path in folder.rglob("*") if path.is_file()]
            if limit > 1 and files:
                assert sum(path.stat().st_blocks * 512 for path in files) <= limit


def test_leftovers_are_swept_at_the_first_use(make: Make, tmp_path: Path) -> None:
    make().read(0, SIZE)
    name = blocks(tmp_path)[0].name
    part = tmp_path / "cache" / FOLDER / "parts" / f"{'0' * 32}{name[32:]}.part"
    part.write_bytes(DATA)
    make("other").read(0, 10)
    assert not part.exists()


def test_files_of_others_are_never_touched(make: Make, tmp_path: Path) -> None:
    file = make(max_bytes=200_000)
    file.read(0, SIZE)
    folder = tmp_path / "cache"
    name = blocks(tmp_path)[0].name
    others = [
        folder / "notes.txt",
        folder / name,
        folder / FOLDER / "000.tar",
        folder / FOLDER / "blocks" / "000.tar",
        folder / FOLDER / "blocks" / f"my-{name}",
        folder / FOLDER / "parts" / "000.part",
        folder / FOLDER / "parts" / f"{name}.tmp",
    ]
    for path in others:
        path.write_bytes(b"mine" * 1000)
        os.utime(path, (1, 1))
    (folder / FOLDER / "blocks" / "link").symlink_to(folder / "notes.txt")
    file = make("other", bytes(reversed(DATA)), max_bytes=200_000)
    for _ in range(2):
        file.read(0, SIZE)
    assert all(path.read_bytes() == b"mine" * 1000 for path in others)


def test_a_directory_that_is_no_directory_degrades_with_one_warning(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    file = make()
    with counted_io() as counts, caplog.at_level(logging.WARNING, "shardwise"):
        for _ in range(3):
            assert file.read(0, SIZE) == DATA
    assert len(caplog.records) == 1
    assert "read directly" in caplog.text
    assert counts["degraded"] >= 1


def test_a_cache_that_vanishes_is_made_anew(make: Make, tmp_path: Path) -> None:
    file = make()
    assert file.read(0, SIZE) == DATA
    shutil.rmtree(tmp_path / "cache")
    assert file.read(0, SIZE) == DATA
    file._cache.bypass.resume_at = 0.0
    assert file.read(0, SIZE) == DATA
    assert len(blocks(tmp_path)) == 5


def test_a_pickle_holds_no_files(make: Make) -> None:
    file = make()
    assert file.read(0, SIZE) == DATA
    copy = pickle.loads(pickle.dumps(file))
    assert copy.read(5, 10) == DATA[5:15]
    assert copy.url == file.url
    assert len(pickle.dumps(file)) < 2000


def test_a_forked_child_reads_on(make: Make) -> None:
    file = make()
    assert file.read(0, 10) == DATA[:10]
    cache = file._cache
    # As if other threads were at work: nobody releases these locks in the child.
    with cache._lock, cache._ahead._lock, cache._changed:
        assert in_child(lambda: file.read(0, SIZE)) == DATA
    assert file.read(0, SIZE) == DATA
    assert set(file._file.reads().values()) == {1}


def test_a_query_is_not_written_down(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    url = "https://host/a.tar?X-Amz-Signature=abcdef"
    file = CachedFile(CountedFile(url, tmp_path / "a", tmp_path / "log"), _cache(tmp_path))
    other = CountedFile("https://host/a.tar", tmp_path / "a", tmp_path / "log")
    assert file.read(0, SIZE) == DATA
    assert not any(b"abcdef" in path.read_bytes() for path in blocks(tmp_path))
    CachedFile(other, _cache(tmp_path)).read(0, SIZE)
    assert len(blocks(tmp_path)) == 2 * len(set(other.reads()))


def _cache(tmp_path: Path):
    return cache_of(CacheSettings(tmp_path / "cache", max_bytes=10_000_000, block_bytes=BLOCK))


def test_files_of_the_same_settings_share_a_cache(tmp_path: Path) -> None:
    settings = CacheSettings(tmp_path)
    assert cache_of(settings) is cache_of(settings)
