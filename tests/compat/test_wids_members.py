"""wids' small parts: members of a tar by number, the cache of what was used last, cleaning up."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

from shardwise import DataError
from shardwise.compat import wids
from shardwise.compat.wids.wids import group_by_key, splitname
from shardwise.compat.wids.wids_cleanup import (
    ExclusiveLock,
    keep_most_recent_files,
)
from shardwise.compat.wids.wids_lru import LRUCache
from shardwise.compat.wids.wids_mmtar import MMIndexedTar, keep_while_reading
from shardwise.compat.wids.wids_tar import TarFileReader, find_index_file
from tests.support.tars import write_tar

LONG = "d" * 90 + "/" + "f" * 90


@pytest.mark.parametrize("dialect", ["ustar", "gnu", "pax"])
@pytest.mark.parametrize("kind", [MMIndexedTar, TarFileReader])
def test_members_of_long_names_are_found(tmp_path, dialect, kind):
    members = [("README", b"1"), (f"{LONG}.a", b"22"), (f"{LONG}.b", b""), ("x.txt", b"4")]
    url = write_tar(tmp_path / "a.tar", members, format=dialect)
    tar = kind(url)
    assert list(tar) == members
    assert tar[f"{LONG}.a"] == members[1]
    with pytest.raises(IndexError):
        tar.get_at_index(4)
    with pytest.raises(KeyError):
        tar.get_by_name("none")
    with open(url, "rb") as file:
        # wids' names of the first argument.
        assert len(kind(**{"file" if kind is TarFileReader else "fname": file})) == 4


def test_a_cut_tar_is_an_error(tmp_path):
    url = write_tar(tmp_path / "a.tar", [("a.bin", b"x" * 5000)])
    os.truncate(url, 2048)
    with pytest.raises(DataError, match="cut short"):
        MMIndexedTar(url)


def test_a_file_is_removed_when_its_last_reader_closes_it(tmp_path):
    url = write_tar(tmp_path / "a.tar", [("a.txt", b"1")])
    first, second = (MMIndexedTar(url, cleanup_callback=keep_while_reading) for _ in range(2))
    first.close()
    assert os.path.exists(url)
    assert second[0] == ("a.txt", b"1")
    second.close()
    assert not os.path.exists(url)
    with pytest.raises(ValueError, match="middle"):
        keep_while_reading(url, 0, "middle")


def test_names_are_split_at_the_first_dot_of_the_base_name():
    assert splitname("v1.0/a.b.c") == ("v1.0/a", ".b.c")
    with pytest.raises(ValueError, match="no extension"):
        splitname("v1.0/a")
    assert group_by_key(["a.x", "a.y", "v.0/LICENSE", "b.x", "a.x"]) == [[0, 1], [3], [4]]
    assert find_index_file("a.tar") == "a.tar.index"


def test_a_cache_is_copied_with_what_it_holds():
    cache = LRUCache(2)
    cache["a"] = 1
    for copied in (copy.copy(cache), pickle.loads(pickle.dumps(cache))):
        assert (list(copied.items()), copied.capacity) == ([("a", 1)], 2)
    assert cache in {cache}
    with pytest.raises(ValueError, match="capacity=0"):
        LRUCache(0)


def test_clearing_a_cache_releases_everything():
    released = []
    cache = LRUCache(2, release_handler=lambda key, value: released.append((key, value)))
    cache["a"], cache["b"] = 1, 2
    cache.clear()
    assert released == [("a", 1), ("b", 2)]


def write_files(directory, count):
    for i in range(count):
        path = directory / f"file{i}"
        path.write_bytes(b"x" * 10)
        os.utime(path, (1000 + i, 1000 + i))


def test_some_files_that_changed_last_stay(tmp_path):
    write_files(tmp_path, 9)
    keep_most_recent_files(f"{tmp_path}/*", maxfiles=2)
    assert sorted(os.listdir(tmp_path)) == ["file7", "file8"]
    keep_most_recent_files(f"{tmp_path}/none*")


def test_one_holder_has_a_lock_at_a_time(tmp_path):
    lock, other = (ExclusiveLock(tmp_path / "lock") for _ in range(2))
    with lock:
        assert not other.try_lock()
    assert other.try_lock()
    other.release_lock()


def test_the_package_says_what_it_has():
    assert {"ShardListDataset", "wids_index"} <= set(dir(wids))
    assert wids.wids.ShardListDataset is wids.ShardListDataset
    with pytest.raises(AttributeError, match="ShardedDataset"):
        wids.ShardedDataset
