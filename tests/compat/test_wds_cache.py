"""The cache of shards: each file is the right URL's, whole, and deleted only when it is ours."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import random
from pathlib import Path

import pytest

from shardwise.compat.webdataset import cache, cached_files, handlers
from shardwise.compat.webdataset.cache import FileCache, LRUCleanup, check_tar_format
from tests.support.ranks import run_forked
from tests.support.servers import nginx
from tests.support.tars import make_shards, write_tar


@pytest.fixture(scope="module")
def web(no_orphans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    for number, part in enumerate(("train", "val")):
        (folder / part).mkdir()
        write_tar(folder / part / "000.tar", [("a.txt", b"%d" % number * 1000)])
    for number in range(6):
        write_tar(folder / f"{number:03d}.tar", [("a.txt", b"%d" % number * 20_000)])
    (folder / "page.tar").write_text("<html>not here</html>")
    whole = (folder / "000.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[:15_000])
    with nginx(folder) as server:
        yield server


def read(opened):
    with opened["stream"] as stream:
        return stream.read()


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_two_urls_with_one_name_get_two_files(web, tmp_path):
    urls = [f"{web.url}/train/000.tar", f"{web.url}/val/000.tar"]
    before = web.count()
    for _ in range(2):
        opened = list(FileCache(tmp_path)(urls))
        contents = [read(item) for item in opened]
        assert [data[512:513] for data in contents] == [b"0", b"1"]
        assert len({item["local_path"] for item in opened}) == 2
        assert opened[0]["local_path"] == str(tmp_path / "000.tar")
        assert all(item["local_path"].endswith("000.tar") for item in opened)
    # Nothing was fetched in the second round.
    assert web.count() - before == 2


def test_a_file_of_another_program_is_neither_read_nor_replaced(web, tmp_path):
    (tmp_path / "000.tar").write_bytes(b"mine")
    (opened,) = FileCache(tmp_path)([f"{web.url}/000.tar"])
    assert read(opened)[512:513] == b"0"
    assert (tmp_path / "000.tar").read_bytes() == b"mine"


def test_local_files_are_opened_where_they_lie(tmp_path):
    (path,) = make_shards(tmp_path, [1])
    opened = list(FileCache(tmp_path / "cache")([path, {"url": f"file:{path}"}]))
    assert [item["local_path"] for item in opened] == [path, path]
    assert not (tmp_path / "cache").exists()
    for item in opened:
        item["stream"].close()


@pytest.mark.parametrize("name", ["page.tar", "cut.tar", "missing.tar"])
def test_what_is_no_whole_tar_leaves_nothing_behind(web, tmp_path, name):
    with pytest.raises((ValueError, OSError), match=name):
        list(FileCache(tmp_path)([f"{web.url}/{name}"]))
    assert os.listdir(tmp_path) == []


def test_a_handler_is_asked_once_and_the_next_shard_comes(web, tmp_path):
    asked = []

    def handler(error):
        asked.append(str(error))
        return True

    urls = [f"{web.url}/page.tar", f"{web.url}/001.tar"]
    (opened,) = FileCache(tmp_path, handler=handler)(urls)
    assert read(opened)[512:513] == b"1"
    assert len(asked) == 1
    assert "page.tar" in asked[0]
    assert "<html>" in asked[0]
    assert list(FileCache(tmp_path, handler=handlers.ignore_and_stop)(urls)) == []


def test_a_download_that_was_killed_is_swept_and_never_read(tmp_path, web):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    folder = tmp_path / "cache"
    code = """
import os, signal, sys, threading
from pathlib import Path
from shardwise.compat.webdataset.cache import FileCache
from tests.support.waiting import wait_for

cache, url = FileCache(sys.argv[1], validator=None), f"pipe:cat {sys.argv[2]}"
threading.Thread(target=cache.get_file, args=(url,), daemon=True).start()
with open(sys.argv[2], "wb") as stream:
    stream.write(b"half")
    stream.flush()
    wait_for(lambda: any(Path(sys.argv[1]).glob(".*.tmp")))
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_forked(tmp_path, code, folder, fifo, check=False) == "begun\n"
    (left,) = folder.glob(".*.tmp")
    # An empty one might be only just begun, and stays.
    left.write_bytes(b"half")
    assert visible(folder) == []
    FileCache(folder).get_file(f"{web.url}/000.tar")
    assert not left.exists()
    assert visible(folder) == ["000.tar"]


def test_a_download_under_way_is_not_swept(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        cached_files.new_file([tmp_path / "a.tar"], "s3://a") as file,
    ):
        file.write(b"half")
        file.flush()
        cached_files.sweep(tmp_path)
        assert Path(file.name).exists()
        assert visible(tmp_path) == []
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_name_that_another_url_takes_during_a_download_stays_that_ones(tmp_path):
    places = cached_files.candidates(tmp_path, "a.tar", "s3://a")
    others = cached_files.candidates(tmp_path, "a.tar", "s3://b")
    with cached_files.new_file(places, "s3://a") as file:
        file.write(b"late")
        with cached_files.new_file(others, "s3://b") as other:
            other.write(b"early")
    assert [place.read_bytes() for place in places] == [b"early", b"late"]
    assert [cached_files.holds(place, "s3://a") for place in places] == [False, True]
    assert cached_files.holds(others[0], "s3://b")


def test_two_downloads_of_one_url_end_as_one_file(tmp_path):
    places = cached_files.candidates(tmp_path, "a.tar", "s3://a")
    with cached_files.new_file(places, "s3://a") as file:
        file.write(b"whole")
        with cached_files.new_file(places, "s3://a") as other:
            other.write(b"whole")
    assert visible(tmp_path) == ["a.tar"]
    assert cached_files.holds(places[0], "s3://a")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_limit_is_kept_and_what_was_used_last_stays(web, tmp_path):
    (tmp_path / "foreign").write_bytes(bytes(500_000))
    size = 30_720
    # So that times differ, whatever the file system's clock.
    ages = iter(range(1, 100))

    class Cache(FileCache):
        def _tidy(self, place, *, is_new):
            os.utime(place, (next(ages),) * 2)
            super()._tidy(place, is_new=is_new)

    kept = Cache(tmp_path, cache_size=3 * size, cache_cleanup_interval=1000)
    kept.cleaner.keyfn = os.path.getmtime
    for number in (0, 1, 2, 0, 3, 4):
        (opened,) = kept([f"{web.url}/{number:03d}.tar"])
        opened["stream"].close()
        total = sum(os.path.getsize(tmp_path / name) for name in visible(tmp_path))
        assert total - 500_000 <= 3 * size
    assert len(visible(tmp_path)) == 4
    assert (tmp_path / "foreign").exists()
    # No record of what is gone.
    assert len(list(tmp_path.glob(".*.url"))) == 3


def test_the_cache_of_older_versions_reads_remote_shards_once(web, tmp_path):
    before = web.count()
    for _ in range(2):
        shards = [{"url": f"{web.url}/000.tar"}]
        (sample,) = cache.cached_tarfile_samples(shards, cache_dir=tmp_path)
        assert sample["txt"][:1] == b"0"
    assert web.count() - before == 1


def test_a_hit_makes_a_file_the_one_used_last(web, tmp_path):
    kept = FileCache(tmp_path)
    (opened,) = kept([f"{web.url}/000.tar"])
    opened["stream"].close()
    path = tmp_path / "000.tar"
    os.utime(path, (1, 1))
    (opened,) = kept([f"{web.url}/000.tar"])
    opened["stream"].close()
    assert path.stat().st_mtime > 1


def test_a_file_that_is_read_is_not_deleted(web, tmp_path, tmp_path_factory):
    tiny = FileCache(tmp_path, cache_size=1)
    first, second = tiny([f"{web.url}/000.tar", f"{web.url}/001.tar"])
    assert visible(tmp_path) == ["000.tar", "001.tar"]
    # Nor by another process.
    code = (
        "import sys; from shardwise.compat.webdataset.cache import LRUCleanup;"
        "LRUCleanup(sys.argv[1], 0).cleanup()"
    )
    run_forked(tmp_path_factory.mktemp("program"), code, tmp_path)
    assert visible(tmp_path) == ["000.tar", "001.tar"]
    first["stream"].close()
    tiny.cleaner.last_run = 0
    tiny.cleaner.cleanup()
    assert visible(tmp_path) == ["001.tar"]
    second["stream"].close()


def test_a_full_disk_is_read_past_with_a_warning(web, tmp_path, monkeypatch):
    def full(url, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "_copy", full)
    with pytest.warns(UserWarning, match="no room in the cache"):
        (opened,) = FileCache(tmp_path)([f"{web.url}/000.tar"])
    assert "local_path" not in opened
    assert read(opened)[512:513] == b"0"
    assert visible(tmp_path) == []


def test_names_stay_in_the_cache(web, tmp_path):
    for name in ("../out.tar", str(tmp_path / "out.tar"), "a/../../out.tar"):
        with pytest.raises(ValueError, match="leads out"):
            FileCache(tmp_path, url_to_name=lambda url, name=name: name).get_file(
                f"{web.url}/000.tar"
            )
    for name in ("", "..", ".", "sub/.."):
        path = FileCache(tmp_path, url_to_name=lambda url, name=name: name).get_file(
            f"{web.url}/000.tar"
        )
        assert Path(path).resolve().is_relative_to(tmp_path.resolve())
    path = FileCache(tmp_path, url_to_name=lambda url: cache.url_to_cache_name(url, 1)).get_file(
        f"{web.url}/train/000.tar"
    )
    assert path == str(tmp_path / "train" / "000.tar")


def test_a_record_holds_no_secret_of_the_url(web, tmp_path):
    FileCache(tmp_path).get_file(f"{web.url}/000.tar?token=hunter2")
    (record,) = tmp_path.glob(".*.url")
    assert "hunter2" not in record.read_text()


def test_a_download_that_fails_leaves_the_file_that_is_there(web, tmp_path):
    path = tmp_path / "a.tar"
    url = f"{web.url}/000.tar"
    with cached_files.new_file([path], url) as file:
        file.write(b"old")
    with pytest.raises(OSError), cached_files.new_file([path], url) as file:
        cache._copy(f"{web.url}/missing.tar", file)
    assert path.read_bytes() == b"old"
    assert cached_files.holds(path, url)
    with cached_files.new_file([path], url) as file:
        cache._copy(url, file)
        assert path.read_bytes() == b"old"
    assert check_tar_format(str(path))
    assert visible(tmp_path) == ["a.tar"]


def test_cleaning_by_hand_takes_the_smallest_key_first(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(100))
    LRUCleanup(tmp_path, 250, keyfn=lambda path: path != str(tmp_path / "b")).cleanup()
    assert visible(tmp_path) == ["a", "c"]
    cleaner = LRUCleanup(interval=1000)
    cleaner.cleanup()
    cleaner.set_cache_dir(tmp_path)
    cleaner.cache_size = 0
    cleaner.cleanup()
    assert visible(tmp_path) == []
    (tmp_path / "d").write_bytes(bytes(100))
    cleaner.cleanup()
    assert visible(tmp_path) == ["d"]


# What a whole tar is.


@pytest.mark.parametrize("kind", ["ustar", "gnu", "pax"])
def test_a_tar_that_is_cut_anywhere_is_no_tar(tmp_path, kind):
    members = [
        ("d" * 60 + "/" + "a" * 60 + ".txt", b"x" * 700),
        ("b.txt", b""),
        ("c.txt", b"y" * 512),
    ]
    path = write_tar(tmp_path / "a.tar", members, format=kind)
    data = Path(path).read_bytes()
    assert check_tar_format(path)
    end = len(data.rstrip(b"\0")) + 511 & ~511
    for cut in range(0, end + 1, 512):
        Path(path).write_bytes(data[:cut])
        assert not check_tar_format(path), cut
    # One letter of a name in a header.
    Path(path).write_bytes(data.replace(b"b.txt", b"B.txt"))
    assert not check_tar_format(path)


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_a_compressed_tar_is_unpacked_to_see_whether_it_is_whole(tmp_path, opener):
    path = tmp_path / "a.tgz"
    plain = write_tar(tmp_path / "a.tar", [("a.bin", random.Random(0).randbytes(30_000))])
    with opener(path, "wb") as file:
        file.write(Path(plain).read_bytes())
    data = path.read_bytes()
    assert check_tar_format(str(path))
    for cut in (len(data) - 1, len(data) // 2, 20):
        path.write_bytes(data[:cut])
        assert not check_tar_format(str(path))
    # Another byte, whatever was there.
    path.write_bytes(data[:15_000] + bytes([data[15_000] ^ 1]) + data[15_001:])
    assert not check_tar_format(str(path))


def test_names_of_pipes_are_quoted_and_short():
    name = cache.url_to_cache_name("pipe:curl " + "x" * 300)
    assert len(name) == 128
    assert cache.url_to_cache_name("pipe:cat a/b") == "pipe%3Acat%20a%2Fb"


def test_the_path_of_a_local_file_is_told_without_opening_it(tmp_path):
    # A program may make it later.
    path = str(tmp_path / "not-there.tar")
    assert FileCache(tmp_path / "cache").get_file(path) == path
    assert FileCache(tmp_path / "cache").get_file(f"file:{path}") == path
