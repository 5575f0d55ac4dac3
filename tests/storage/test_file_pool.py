import os
import pickle
import resource

import psutil
import pytest

from shardwise.base.errors import MissingShardError, StaleIndexError
from shardwise.storage import FilePool, FileStat
from tests.support.forks import in_child
from tests.support.threads import at_once


def make_files(directory, count):
    paths = [str(directory / f"{i:02d}") for i in range(count)]
    for i, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(bytes([i]) * 100)
    return paths


def pool_of(limit):
    pool = FilePool()
    pool.limit = limit
    return pool


def num_open_under(directory):
    under = str(directory.resolve())
    return sum(file.path.startswith(under) for file in psutil.Process().open_files())


def test_no_more_files_than_the_limit_stay_open(tmp_path):
    pool = pool_of(3)
    for path in make_files(tmp_path, 10):
        assert pool.get(path).read(99, 1) == bytes([int(path[-2:])])
        assert num_open_under(tmp_path) <= 3
    assert len(pool) == 3
    pool.close()
    assert num_open_under(tmp_path) == 0


def test_the_file_used_longest_ago_goes_first(tmp_path):
    a, b, c = make_files(tmp_path, 3)
    pool = pool_of(2)
    first, second = pool.get(a), pool.get(b)
    assert pool.get(a) is first
    pool.get(c)
    assert pool.get(a) is first
    assert pool.get(b) is not second


def test_a_file_in_use_is_not_closed_when_it_falls_out(tmp_path):
    a, b = make_files(tmp_path, 2)
    pool = pool_of(1)
    held = pool.get(a)
    fd = held._descriptor().fd
    pool.get(b)
    assert held.read(0, 3) == b"\0\0\0"
    assert held._descriptor().fd == fd


def test_many_threads_read_many_files_through_a_small_pool(tmp_path):
    paths = make_files(tmp_path, 12)
    pool = pool_of(2)

    def read(seed):
        for i in range(200):
            number = (seed * 7 + i * 5) % 12
            assert pool.get(paths[number]).read(i % 90, 10) == bytes([number]) * 10

    at_once(read, 6)
    assert num_open_under(tmp_path) == 2


def test_a_pool_works_in_a_child_forked_while_its_lock_was_held(tmp_path):
    (path,) = make_files(tmp_path, 1)
    pool = FilePool()
    pool.get(path)
    with pool._open.lock:
        assert in_child(lambda: (pool.get(path).read(0, 1), len(pool))) == (b"\0", 1)


def test_a_pool_pickles_without_its_files(tmp_path):
    (path,) = make_files(tmp_path, 1)
    pool = FilePool()
    pool.get(path)
    assert len(pickle.loads(pickle.dumps(pool))) == 0


def test_a_local_file_that_is_opened_again_is_the_one_that_was_pinned(tmp_path):
    path, other = make_files(tmp_path, 2)
    pool = pool_of(1)
    stat = pool.get(path).stat()
    pool.pin(path, stat)
    assert len(pool.get(other).read(0, 1)) == 1
    os.utime(path, ns=(0, stat.mtime_ns + 1))
    for each in (pool, pickle.loads(pickle.dumps(pool))):
        with pytest.raises(StaleIndexError, match="replaced while it was in use") as caught:
            each.get(path)
        assert caught.value.url == path
        with pytest.raises(StaleIndexError):
            each.pin(path, stat._replace(num_bytes=stat.num_bytes + 1))


def test_a_pool_pickles_while_other_files_are_pinned():
    pool = FilePool()

    class Pinning(FileStat):
        """Pins another file while it is pickled, as another thread may."""

        def __reduce__(self):
            pool.pin(f"s3://bucket/{len(pool._pins)}", FileStat(1, 0, "b"))
            return FileStat, tuple(self)

    for number in range(3):
        pool.pin(f"s3://bucket/{number}", Pinning(1, 0, "a"))
    assert len(pickle.loads(pickle.dumps(pool))._pins) == 3


def test_a_remote_file_that_was_pinned_stays_that_version():
    pool = FilePool()
    pool.pin("s3://bucket/a", FileStat(5, 1, "old"))
    for each in (pool, pickle.loads(pickle.dumps(pool))):
        each.pin("s3://bucket/a", FileStat(5, 2, "old"))
        with pytest.raises(StaleIndexError, match=r"ETag old, and has 5 bytes, ETag new"):
            each.pin("s3://bucket/a", FileStat(5, 1, "new"))


def test_a_missing_file_leaves_the_pool_as_it_was(tmp_path):
    pool = FilePool()
    with pytest.raises(MissingShardError):
        pool.get(str(tmp_path / "none"))
    assert len(pool) == 0


@pytest.mark.parametrize(("soft", "kept"), [(100, 25), (1024, 256), (10**6, 2048)])
def test_a_pool_keeps_a_quarter_of_the_files_that_a_process_may_open(monkeypatch, soft, kept):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, soft))
    assert FilePool().limit == kept


def test_a_pool_fits_the_process_that_it_is_unpickled_in(monkeypatch):
    pickled = pickle.dumps(FilePool())
    monkeypatch.setattr(resource, "getrlimit", lambda what: (400, 400))
    assert pickle.loads(pickled).limit == 100
