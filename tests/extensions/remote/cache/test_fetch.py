"""Blocks of the cache filled by long requests: right bytes, whole blocks, no lock left behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import StorageError
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache import cache as cache_module
from shardwise.extensions.remote.cache import file as file_module
from shardwise.extensions.remote.cache.block_file import BlockLock
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.fetch import stream_blocks
from shardwise.storage import FileStat, StorageOptions
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.open import open_file
from tests.support.remote_shards import put_indexed_shards
from tests.support.servers import S3Server

BLOCK = 160 << 10
DATA = random.Random(5).randbytes(10 * BLOCK - 777)


class Streamed:
    """A remote file that streams in pieces of some lengths, and may break."""

    is_remote = True
    gap_bytes = 0

    def __init__(self, data: bytes, pieces: list[int], stop_at: int | None = None) -> None:
        self.url = "far://x.tar"
        self.data = data
        self.lengths = pieces
        self.stop_at = len(data) if stop_at is None else stop_at
        self.streams: list[tuple[int, int]] = []

    def stat(self) -> FileStat:
        return FileStat(len(self.data), 0, '"1"')

    def pin(self, stat: FileStat) -> None:
        """It does not change."""

    def stream(self, start: int, stop: int) -> Iterator[memoryview]:
        self.streams.append((start, stop))
        number = 0
        while start < stop:
            length = self.lengths[number % len(self.lengths)]
            end = min(start + length, stop, self.stop_at)
            if end == start:
                raise StorageError("the connection broke")
            yield memoryview(self.data)[start:end]
            start, number = end, number + 1


def blocks_of(source: Streamed, folder: Path, numbers: range) -> tuple[CachedFile, list]:
    settings = CacheSettings(folder / "cache", max_bytes=100 << 20, block_bytes=BLOCK)
    file = CachedFile(source, cache_of(settings))
    return file, [file._block(file._known(), number, []) for number in numbers]


def ignored(num_bytes: int, head_s: float) -> None:
    """Nobody measures the rate here."""


def published(folder: Path) -> list[int]:
    names = (path.stem for path in (folder / "cache" / FOLDER / "blocks").iterdir())
    return sorted(int(name[-8:], 16) for name in names)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=5), st.integers(0, 9))
def test_pieces_of_any_length_make_whole_blocks(tmp_path_factory, pieces, first):
    pieces = [max(each, 20_000) if sum(pieces) < 100_000 else each for each in pieces]
    folder = tmp_path_factory.mktemp("stream")
    source = Streamed(DATA, pieces)
    file, blocks = blocks_of(source, folder, range(first, 10))
    stream_blocks(blocks, ignored)
    assert source.streams == [(first * BLOCK, len(DATA))]
    assert published(folder) == list(range(first, 10))
    assert file.read(first * BLOCK, len(DATA) - first * BLOCK) == DATA[first * BLOCK :]
    # Digests that were made while the bytes arrived are those of the bytes.
    again = CachedFile(source, cache_of(CacheSettings(folder / "cache", block_bytes=BLOCK)))
    assert again.read(first * BLOCK + 5, 100_000) == DATA[first * BLOCK + 5 :][:100_000]
    assert len(source.streams) == 1


def test_a_stream_that_breaks_leaves_the_blocks_that_were_whole(tmp_path):
    source = Streamed(DATA, [70_000], stop_at=3 * BLOCK + 100)
    file, blocks = blocks_of(source, tmp_path, range(10))
    stream_blocks(blocks, ignored)
    assert published(tmp_path) == [0, 1, 2]
    assert list((tmp_path / "cache" / FOLDER / "parts").iterdir()) == []
    source.stop_at = len(DATA)
    # The locks are free again.
    stream_blocks(blocks, ignored)
    assert published(tmp_path) == list(range(10))
    assert file.read(0, len(DATA)) == DATA


def test_blocks_that_others_fetch_are_left_out(tmp_path):
    source = Streamed(DATA, [70_000])
    _, blocks = blocks_of(source, tmp_path, range(10))
    lock = blocks[4].cache.lock_block(blocks[4].name, blocks[4].info)
    assert isinstance(lock, BlockLock)
    stream_blocks(blocks, ignored)
    assert source.streams == [(0, 4 * BLOCK), (5 * BLOCK, len(DATA))]
    assert published(tmp_path) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    blocks[4].cache.abandon(lock)


def test_a_disk_that_refuses_a_write_costs_that_block_only(tmp_path, monkeypatch):
    source = Streamed(DATA, [70_000])
    _, blocks = blocks_of(source, tmp_path, range(10))
    write_at, broken = cache_module.write_at, []

    def refuse_once(fd: int, data: memoryview, offset: int) -> None:
        if offset > 100_000 and not broken:
            broken.append(fd)
            raise OSError(5, "Input/output error")
        write_at(fd, data, offset)

    monkeypatch.setattr(cache_module, "write_at", refuse_once)
    stream_blocks(blocks, ignored)
    assert published(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_sequential_epoch_fills_the_cache_by_long_requests(s3: S3Server, tmp_path):
    names = [f"long/{number}.bin" for number in range(3)]
    data = [random.Random(number).randbytes(6_000_000) for number in range(3)]
    for name, each in zip(names, data, strict=True):
        s3.put(name, each)
    settings = CacheSettings(tmp_path / "cache", block_bytes=64 << 10)
    options = StorageOptions(config=s3.config, cache=settings)
    files = [open_file(s3.url(name), options=options) for name in names]
    for file, after in pairwise(files):
        after.open()  # as an index pins it
        file.next_file = lambda after=after: after
    for file, whole in zip(files, data, strict=True):
        for at in range(0, 6_000_000, 400_000):
            assert file.read(at, 400_000) == whole[at : at + 400_000]
    gets = [seen for seen in s3.requests() if seen["method"] == "GET" and "/long/" in seen["path"]]
    num_blocks = 3 * -(-6_000_000 // (64 << 10))
    assert 3 <= len(gets) < num_blocks / 3
    for file, whole in zip(files, data, strict=True):
        assert file.read(0, 6_000_000) == whole
    again = [seen for seen in s3.requests() if seen["method"] == "GET" and "/long/" in seen["path"]]
    assert len(again) == len(gets)


def test_a_loader_in_sequence_has_its_next_shards_fetched_ahead(s3, tmp_path, monkeypatch):
    urls = put_indexed_shards(s3, "ahead-of", [80] * 3, num_bytes=60_000)
    guessed = []
    monkeypatch.setattr(
        file_module,
        "stream_blocks",
        lambda blocks, arrived: (
            guessed.append(blocks[0].file.url) or stream_blocks(blocks, arrived)
        ),
    )
    settings = sw.CacheSettings(tmp_path / "cache", block_bytes=64 << 10)
    data = sw.tar(urls, cache=settings, storage=s3.config)
    with sw.DataLoader(
        data, batch_size=16, rank=0, world_size=1, executor="inline", output="numpy"
    ) as loader:
        num = 0
        for batch in loader:
            num += len(batch["bin"])
            # A reader that is slower than the store.
            for helper in threading.enumerate():
                if helper.name == "shardwise-cache":
                    helper.join(60)
    assert num == 240
    assert set(guessed) >= set(urls[1:])


@pytest.mark.parametrize("num_bytes", [0, 1])
def test_a_stream_of_a_cut_object_is_an_error(s3: S3Server, num_bytes: int):
    url = s3.put("cut.bin", b"a" * num_bytes)
    file = open_file(url, options=StorageOptions(config=s3.config))
    with pytest.raises(sw.DataError, match=r"ended at byte|refuses bytes"):
        list(file.stream(0, 20 << 20))
