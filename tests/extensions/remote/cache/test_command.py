"""`shardwise cache`: shows what is kept, removes what it is told to, and nothing else."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.storage.byte_ranges import ByteRange
from shardwise.storage.options import CacheSettings
from tests.support.commands import document, run
from tests.support.counted_file import CountedFile


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache with two files, of 3 and 2 blocks, the first of which was used long ago."""
    cache = cache_of(CacheSettings(tmp_path / "cache", max_bytes=10_000_000, block_bytes=64 << 10))
    for name, size in (("train/000.tar", 150_000), ("val/000.tar", 100_000)):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(random.Random(size).randbytes(size))
        counted = CountedFile(f"s3://bucket/{name}", path, tmp_path / "log", etag=f'"{size}"')
        file = CachedFile(counted, cache)
        assert file.read(0, size) == path.read_bytes()
        assert file.read(0, 10) == path.read_bytes()[:10]
        if size == 150_000:
            for block in blocks(tmp_path):
                os.utime(block, ns=(10**18, block.stat().st_mtime_ns))
    cache.hits.flush()
    return tmp_path / "cache"


def blocks(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / FOLDER / "blocks").iterdir())


def test_show_tells_blocks_and_sizes_by_file(filled: Path) -> None:
    found = document("cache", filled)
    assert found["num_blocks"] == 5
    assert (found["hits"], found["misses"], found["evictions"]) == (2, 5, 0)
    assert found["max_bytes"] == 10_000_000
    assert found["num_bytes"] >= 250_000
    train, val = found["files"]
    assert train == {
        "url": "s3://bucket/train/000.tar",
        "version": '"150000"',
        "file_bytes": 150_000,
        "num_blocks": 3,
        "num_bytes": 150_000,
        "last_used": "2001-09-09T01:46:40+00:00",
    }
    assert (val["url"], val["num_blocks"]) == ("s3://bucket/val/000.tar", 2)
    assert document("cache", filled) == found
    shown = run("cache", filled).stdout
    assert re.search(r"s3://bucket/train/000.tar +3 +150.0 kB +150.0 kB", shown)
    assert re.search(r"space +2\d\d\.\d kB of 10.0 MB", shown)


def test_show_reads_only(filled: Path) -> None:
    def times() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in filled.rglob("*") if path.is_file()}
        return {path: (each.st_mtime_ns, each.st_atime_ns) for path, each in found.items()}

    before = times()
    run("cache", filled)
    # The usage_file is read, which its file system may note.
    assert {path for path, seen in times().items() if seen != before[path]} <= {
        filled / FOLDER / "ledger"
    }


def test_clean_removes_what_was_not_used_for_long(filled: Path, tmp_path: Path) -> None:
    done = document("cache", filled, "--clean", "--older-than", "30d")
    assert (done["num_blocks"], done["num_in_use"]) == (3, 0)
    assert done["num_bytes"] >= 150_000
    assert [each["url"] for each in document("cache", filled)["files"]] == [
        "s3://bucket/val/000.tar"
    ]
    assert "removed 0 blocks" in run("cache", filled, "--clean", "--older-than", "1h").stdout


def test_clean_removes_all_but_files_of_others(filled: Path, tmp_path: Path) -> None:
    part = filled / FOLDER / "parts" / f"{blocks(tmp_path)[0].name}.part"
    part.write_bytes(b"left by a dead process")
    others = [filled / "mine.txt", filled / FOLDER / "blocks" / "mine.txt"]
    for path in others:
        path.write_text("mine")
    done = document("cache", filled, "--clean")
    assert (done["num_blocks"], done["num_parts"]) == (5, 1)
    assert [path.read_text() for path in others] == ["mine", "mine"]
    found = document("cache", filled)
    assert (found["num_blocks"], found["num_parts"], found["num_bytes"]) == (0, 0, 0)


def test_clean_leaves_what_is_being_read(filled: Path, tmp_path: Path) -> None:
    cache = cache_of(CacheSettings(filled, max_bytes=10_000_000, block_bytes=64 << 10))
    name = blocks(tmp_path)[0].name
    buffer = memoryview(bytearray(10))
    cache.read(name, [ByteRange(0, 10, 0)], buffer)
    block = cache._open_blocks[name]
    assert block._enter()
    try:
        assert document("cache", filled, "--clean")["num_in_use"] == 1
        assert [path.name for path in blocks(tmp_path)] == [name]
    finally:
        block._leave()
    assert "1 block " in run("cache", filled, "--clean").stdout


def test_what_can_not_be_meant_is_refused(filled: Path, tmp_path: Path) -> None:
    assert "add --clean" in run("cache", filled, "--older-than", "7d", exit_code=2).stderr
    assert "7d" in run("cache", filled, "--clean", "--older-than", "soon", exit_code=2).stderr
    assert "no cache" in run("cache", tmp_path / "nowhere", exit_code=1).stderr
    assert "no cache" in run("cache", tmp_path, "--clean", exit_code=1).stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_block_does_not_stop_the_show(filled: Path, tmp_path: Path) -> None:
    os.truncate(blocks(tmp_path)[0], 100)
    assert document("cache", filled)["num_unreadable"] == 1
