"""The cache among processes: one fetch a block, a hard limit, kills, full and read-only disks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwise.extensions.remote.cache import CachedFile, cache_of, usage
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.usage import disk_space, read_usage
from shardwise.storage.options import CacheSettings
from tests.support.cache_reader import finish, start
from tests.support.counted_file import CountedFile
from tests.support.io_counts import counted_io
from tests.support.servers import S3Server
from tests.support.waiting import wait_for

BLOCK = 64 << 10


def write_files(folder: Path, number: int, size: int = 200_000) -> list[str]:
    names = [f"{i:03}.tar" for i in range(number)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(random.Random(i).randbytes(size))
    return names


def settings(folder: Path, **limits: Any) -> dict[str, Any]:
    limits = {"max_bytes": 100_000_000, "block_bytes": BLOCK, **limits}
    return {"directory": str(folder / "cache"), **limits}


def disk_bytes(folder: Path) -> int:
    """The space that everything below a folder takes.

    Exact on a file system of its own, where it counts what is open without a name, too.
    """
    if folder.parent.is_mount():
        disk = os.statvfs(folder.parent)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(f"{root}/{name}").st_blocks * 512
    return total


def poll_while(processes: list[subprocess.Popen[str]], folder: Path) -> int:
    """The most space seen until all of them have ended, looked at every 10 ms."""
    most = 0
    while any(process.poll() is None for process in processes):
        # While a folder is walked, nothing may move in it.
        is_walked = not folder.parent.is_mount()
        for process in processes if is_walked else ():
            process.send_signal(signal.SIGSTOP)
        most = max(most, disk_bytes(folder))
        for process in processes if is_walked else ():
            process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    return most


def test_processes_ask_a_store_for_each_block_once(tmp_path: Path, s3: S3Server) -> None:
    names = write_files(tmp_path, 20)
    for name in names:
        s3.put(name, (tmp_path / name).read_bytes())
    readers = [
        start(
            folder=str(tmp_path),
            cache=settings(tmp_path),
            names=random.Random(seed // 2).sample(names, len(names)),
            config=s3.config,
            bucket=s3.bucket,
            waits=True,
        )
        for seed in range(4)
    ]
    assert all(reader.stdout and reader.stdout.readline() == "ready\n" for reader in readers)
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    counts = [finish(reader) for reader in readers]
    seen = [each for each in s3.requests() if each["method"] == "GET"]
    assert len({(each["path"], each["range"]) for each in seen}) == len(seen) == 20 * 4
    assert sum(each["num_bytes"] for each in seen) == 20 * 200_000
    assert sum(each["misses"] for each in counts) == 20 * 4
    assert all(each["hits"] > 0 and not each["degraded"] for each in counts)


def usage_hits(folder: Path) -> int:
    return read_usage(f"{folder}/cache/{FOLDER}").hits


def test_the_hits_of_a_program_that_ended_are_all_in_the_usage_file(tmp_path: Path) -> None:
    names = write_files(tmp_path, 2)
    for _ in range(2):
        before = usage_hits(tmp_path)
        reader = start(folder=str(tmp_path), cache=settings(tmp_path), names=names, epochs=3)
        counted = finish(reader)["hits"]
        assert usage_hits(tmp_path) == before + counted > before


def test_a_dropped_cache_adds_its_hits_and_a_forked_child_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_FLUSHED_S", 1e9)
    [name] = write_files(tmp_path, 1)
    file = _open(tmp_path, name)
    for _ in range(2):
        file.read(0, 200_000)
    child = os.fork()
    if child == 0:
        file.read(0, 10)
        del file
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert usage_hits(tmp_path) == 1
    del file
    gc.collect()
    assert usage_hits(tmp_path) == 1 + 4


def test_hits_of_a_process_that_is_killed_are_in_the_usage_file_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_FLUSHED_S", 1e9)
    [name] = write_files(tmp_path, 1)
    file = _open(tmp_path, name)
    file.read(0, 200_000)
    file.read(0, 10)
    assert usage_hits(tmp_path) == 0
    monkeypatch.setattr(usage, "_FLUSHED_S", 0.0)
    file.read(0, 10)
    assert usage_hits(tmp_path) == 2


@contextlib.contextmanager
def mounted(folder: Path, size: bytes) -> Iterator[str]:
    """A file system in a new folder; yields why there is none, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    failed = libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=" + size)
    yield os.strerror(ctypes.get_errno()) if failed else ""
    assert failed or libc.umount2(bytes(folder), 2) == 0


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where that can be had; else a folder."""
    with mounted(tmp_path / "own", b"64m"):
        yield tmp_path / "own"


@pytest.mark.parametrize(
    ("limit", "num_processes"),
    [
        (400_000, 4),
        *(pytest.param(each, 8, marks=pytest.mark.long) for each in (400_000, 1_500_000)),
    ],
)
def test_processes_keep_the_limit_at_every_moment(
    own_disk: Path, tmp_path: Path, limit: int, num_processes: int
) -> None:
    names = write_files(tmp_path, 20)
    readers = [
        start(
            folder=str(tmp_path),
            cache=settings(own_disk, max_bytes=limit),
            names=random.Random(seed).sample(names, len(names)),
        )
        for seed in range(num_processes)
    ]
    most = poll_while(readers, own_disk / "cache")
    for reader in readers:
        assert finish(reader)["degraded"] == 0
    assert 0.5 * limit < most <= limit


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_kills_leave_nothing_that_is_trusted(tmp_path: Path, num_kills: int) -> None:
    names = write_files(tmp_path, 30, 400_000)
    draw = random.Random(5)
    cache = settings(tmp_path, max_bytes=6_000_000)
    killed = 0
    for _ in range(num_kills):
        reader = start(
            folder=str(tmp_path),
            cache=cache,
            names=draw.sample(names, len(names)),
            epochs=100,
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        time.sleep(draw.random() * 0.1)
        reader.send_signal(signal.SIGKILL)
        reader.communicate(timeout=60)
        killed += reader.returncode == -signal.SIGKILL
        assert disk_bytes(tmp_path / "cache") <= 6_000_000
    assert killed == num_kills
    counts = finish(start(folder=str(tmp_path), cache=cache, names=names))
    assert counts["degraded"] == counts["damaged"] == 0
    assert list((tmp_path / "cache" / FOLDER / "parts").iterdir()) == []
    # The usage file says what is on the disk.
    room = cache_of(CacheSettings(**cache))
    with room.usage_file().lock() as usage:
        assert usage.num_bytes == disk_space(room.folder)


def test_a_killed_process_holds_up_nobody(tmp_path: Path) -> None:
    names = write_files(tmp_path, 1)
    file = _open(tmp_path, names[0])
    file.open()
    child = os.fork()
    if child == 0:
        # Dies while it changes the usage file, which is wrong then.
        _lock_first_block(file)
        usage_file = file._cache.usage_file()
        with usage_file.lock() as usage:
            usage.num_bytes = -(10**9)
            usage_file._write(usage_file._fd, usage, mark=1)
            (tmp_path / "claimed").touch()
            signal.pause()
    wait_for((tmp_path / "claimed").exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    want = (tmp_path / names[0]).read_bytes()
    assert file.read(0, len(want)) == want
    assert len(list((tmp_path / "cache" / FOLDER / "blocks").iterdir())) == 4
    assert list((tmp_path / "cache" / FOLDER / "parts").iterdir()) == []
    with file._cache.usage_file().lock() as usage:
        assert usage.num_bytes == disk_space(file._cache.folder) > 0


def test_a_stopped_process_is_waited_for_and_then_read_past(tmp_path: Path) -> None:
    names = write_files(tmp_path, 1)
    file = _open(tmp_path, names[0], wait_s=0.3)
    file.open()
    child = os.fork()
    if child == 0:
        _lock_first_block(file)
        (tmp_path / "claimed").touch()
        signal.pause()
    try:
        wait_for((tmp_path / "claimed").exists)
        os.kill(child, signal.SIGSTOP)
        want = (tmp_path / names[0]).read_bytes()
        assert file.read(0, len(want)) == want
        assert len(list((tmp_path / "cache" / FOLDER / "blocks").iterdir())) == 3
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_block_that_is_read_is_not_evicted_and_an_open_one_frees_its_space(
    tmp_path: Path,
) -> None:
    names = write_files(tmp_path, 2)
    limits = {"max_bytes": (16_384 + 4 * (BLOCK + 4096 + 128)) * 16 // 15 + 1}
    one = _open(tmp_path, names[0], **limits)
    two = _open(tmp_path, names[1], **limits)
    size = one._cache.settings.block_bytes
    assert one.read(0, 100_000)
    first = next(iter(one._cache._open_blocks.values()))
    assert first._enter()
    try:
        assert two.read(0, 200_000) == (tmp_path / names[1]).read_bytes()[:200_000]
        assert os.fstat(first.fd).st_nlink == 1
    finally:
        first._leave()
    for _ in range(3):
        two.read(0, 200_000)
        two._cache.drop("x")
        one.read(100_000, 100_000)
    assert os.fstat(first.fd).st_nlink == 0
    assert os.fstat(first.fd).st_size == 0
    assert one.read(0, 100_000) == (tmp_path / names[0]).read_bytes()[:100_000]
    assert size


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    with mounted(tmp_path / "disk", b"256k") as failed:
        if failed:
            pytest.skip(f"no file system can be mounted here: {failed}")
        yield tmp_path / "disk"


def test_a_disk_of_256_kb_completes_with_a_warning(small_disk: Path, tmp_path: Path) -> None:
    names = write_files(tmp_path, 5)
    cache = settings(small_disk, max_bytes=10**9)
    readers = [start(folder=str(tmp_path), cache=cache, names=names) for _ in range(2)]
    for reader in readers:
        _, errors = reader.communicate(timeout=120)
        assert reader.returncode == 0, errors
        assert errors.count("can't be used") == 1
        assert "No space left" in errors
    assert (small_disk / "cache" / FOLDER / "blocks").is_dir()


def test_a_disk_that_fills_in_the_middle_completes(small_disk: Path, tmp_path: Path) -> None:
    names = write_files(tmp_path, 2)
    file = _open(small_disk, names[0], folder=tmp_path)
    want = (tmp_path / names[0]).read_bytes()
    assert file.read(0, 10) == want[:10]
    free = os.statvfs(small_disk)
    (small_disk / "other").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with counted_io() as counts:
        assert file.read(0, len(want)) == want
    assert counts["degraded"]
    assert counts["hits"]
    (small_disk / "other").unlink()
    file._cache.bypass.resume_at = 0.0
    assert file.read(0, len(want)) == want
    assert file.read(0, len(want)) == want
    assert len(list((small_disk / "cache" / FOLDER / "blocks").iterdir())) >= 2


def test_a_write_that_fails_is_no_block(tmp_path: Path) -> None:
    names = write_files(tmp_path, 1)
    file = _open(tmp_path, names[0])
    file.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    want = (tmp_path / names[0]).read_bytes()
    # No file may be longer than half a block.
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK // 2, hard))
    try:
        with counted_io() as counts:
            assert file.read(0, len(want)) == want
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert counts["degraded"]
    folder = tmp_path / "cache" / FOLDER
    assert not [path for path in folder.rglob("*") if path.stat().st_size > BLOCK // 2]
    file._cache.bypass.resume_at = 0.0
    assert file.read(0, len(want)) == want
    assert len(list((folder / "blocks").iterdir())) == 4


def test_a_read_only_disk_serves_what_it_has(small_disk: Path, tmp_path: Path) -> None:
    names = write_files(tmp_path, 1, 150_000)
    want = (tmp_path / names[0]).read_bytes()
    file = _open(small_disk, names[0], folder=tmp_path)
    assert file.read(0, 70_000) == want[:70_000]
    # What is open for writing would keep the disk from becoming read-only.
    file._cache._start()
    libc = ctypes.CDLL(None, use_errno=True)
    read_only, remount = 1, 32
    assert libc.mount(None, bytes(small_disk), None, read_only | remount, None) == 0
    file = _open(small_disk, names[0], folder=tmp_path)
    with counted_io() as counts:
        assert file.read(0, len(want)) == want
        assert file.read(0, len(want)) == want
    assert counts["degraded"]
    assert counts["hits"] == 4
    file._cache._start()


def _open(base: Path, name: str, folder: Path | None = None, **limits: Any) -> CachedFile:
    folder = folder or base
    counted = CountedFile(f"s3://bucket/{name}", folder / name, folder / "log")
    return CachedFile(counted, cache_of(CacheSettings(**settings(base, **limits))))


def _lock_first_block(file: CachedFile) -> None:
    block = file._block(file._pin_version(), 0, [])
    file._cache.lock_block(block.name, block.info)
