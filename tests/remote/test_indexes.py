"""Indexes of remote shards: made from headers alone, kept, found again, held against the shard."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.extensions.tools.shard_checks import verify_shard
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from shardwise.storage import StorageOptions
from tests.support.commands import run
from tests.support.remote_shards import (
    body,
    check_epoch,
    loader,
    numbered_tar,
    put_indexed_shards,
    put_shards,
    replace_object,
)
from tests.support.servers import S3Server, nginx


def shard_bytes(s3: S3Server, prefix: str) -> int:
    """What the server sent of shards."""
    return sum(
        seen["num_bytes"]
        for seen in s3.requests()
        if seen["method"] == "GET" and seen["path"].endswith(".tar") and prefix in seen["path"]
    )


def test_an_index_costs_headers_once_and_nothing_the_second_time(s3, user_cache):
    urls = put_shards(s3, "headers", [120, 120], num_bytes=50_000)
    total = 2 * len(numbered_tar(0, 120, 50_000))
    assert len(sw.tar(urls, storage=s3.unhedged)) == 240
    assert 0 < shard_bytes(s3, "/headers/") < 0.05 * total
    first = shard_bytes(s3, "/headers/")
    assert len(sw.tar(urls, storage=s3.unhedged)) == 240
    assert shard_bytes(s3, "/headers/") == first
    assert len(list((user_cache / "shardwise" / "index").glob("*.swi"))) == 2


def test_indexes_lie_beside_shards_and_every_machine_finds_them(s3, tmp_path, monkeypatch):
    urls = put_shards(s3, "beside", [5, 6])
    options = StorageOptions(**s3.unhedged)
    results = build_indexes(urls, options=options)
    assert [(r.status, r.path, r.note) for r in results] == [
        ("built", index_path(url), "") for url in urls
    ]
    before = shard_bytes(s3, "/beside/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    check_epoch(loader(sw.tar(urls, storage=s3.unhedged), num_threads=0), 11)
    # The samples, and no header.
    assert shard_bytes(s3, "/beside/") - before <= 2 * len(numbered_tar(0, 6, 1000))
    assert [r.status for r in build_indexes(urls, options=options)] == ["fresh", "fresh"]
    assert [r.status for r in build_indexes(urls, options=options, digests=True)] == 2 * ["built"]
    assert [r.status for r in build_indexes(urls, options=options)] == ["fresh", "fresh"]


@pytest.mark.parametrize("where", ["local", "remote"])
def test_indexes_lie_where_the_user_says(s3, tmp_path, where, user_cache):
    urls = put_shards(s3, f"told-{where}", [5])
    folder = str(tmp_path / "indexes") if where == "local" else s3.url("indexes/here/")
    options = StorageOptions(**s3.unhedged)
    (result,) = build_indexes(urls, index=folder, options=options)
    assert result.path.startswith(folder)
    assert (where == "remote") == user_cache.exists()
    before = shard_bytes(s3, f"/told-{where}/")
    assert len(sw.tar(urls, index=folder, storage=options)) == 5
    assert shard_bytes(s3, f"/told-{where}/") == before


def test_a_store_that_is_read_only_has_its_indexes_on_this_machine(tmp_path, caplog):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "000.tar").write_bytes(numbered_tar(0, 9, 1000))
    with nginx(tmp_path / "web") as server:
        url = f"{server.url}/000.tar"
        (result,) = build_indexes(url)
        assert result.status == "built"
        assert Path(result.path).is_relative_to(tmp_path / "user-cache")
        assert f"{url}.swi" in result.note
        check_epoch(loader(sw.tar(url), num_threads=0), 9)
        assert [r.status for r in build_indexes(url)] == ["fresh"]
        assert f"in {tmp_path / 'user-cache'}" in run("info", url).stdout


def test_without_a_place_for_them_indexes_stay_in_memory(s3, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    urls = put_shards(s3, "nowhere", [7])
    check_epoch(loader(sw.tar(urls, storage=s3.unhedged), num_threads=0), 7)
    assert "indexes can't be written" in caplog.text


def test_shards_of_one_name_do_not_meet(s3):
    for split, first in (("train", 0), ("val", 100)):
        s3.put(f"names/{split}/000.tar", numbered_tar(first, 4, 100))
    for split, first in (("train", 0), ("val", 100)) * 2:
        data = sw.tar(s3.url(f"names/{split}/000.tar"), storage=s3.unhedged)
        assert [sample["bin"] for sample in data] == [body(first + i, 100) for i in range(4)]


def test_a_shard_that_was_replaced_does_not_fit_the_index_beside_it(s3):
    (url,) = put_indexed_shards(s3, "replaced", [5])
    # As long as the one before, and other samples.
    replace_object(s3, url, numbered_tar(50, 5, 1000))
    with pytest.raises(sw.StaleIndexError, match="has changed since it was indexed") as caught:
        len(sw.tar(url, storage=s3.unhedged))
    assert caught.value.url == url
    assert "ETag" in str(caught.value)
    assert "shardwise index" in str(caught.value)
    (problem,) = verify_shard(url, options=StorageOptions(**s3.unhedged)).problems
    assert "has changed since it was indexed" in problem.message
    (result,) = build_indexes(url, options=StorageOptions(**s3.unhedged))
    assert result.status == "built"
    assert sw.tar(url, storage=s3.unhedged)[0]["__key__"] == "s00000050"


def test_an_outdated_copy_in_the_users_cache_is_made_anew(s3, caplog):
    (url,) = put_shards(s3, "outdated", [5])
    assert len(sw.tar(url, storage=s3.unhedged)) == 5
    replace_object(s3, url, numbered_tar(50, 6, 1000))
    with caplog.at_level(logging.WARNING):
        assert len(sw.tar(url, storage=s3.unhedged)) == 6
    assert "Indexing 1 of 1 shards" in caplog.text


def test_indexes_that_were_made_before_the_upload_are_taken_if_they_fit(s3, tmp_path):
    data = numbered_tar(0, 8, 1000)
    local = tmp_path / "000.tar"
    local.write_bytes(data)
    build_indexes(local)
    url = s3.put("uploaded/000.tar", data)
    s3.put("uploaded/000.tar.swi", Path(index_path(str(local))).read_bytes())
    check_epoch(loader(sw.tar(url, storage=s3.unhedged), num_threads=0), 8)
    # Two headers were looked at, and samples read: no scan.
    assert len([r for r in s3.requests() if r["path"].endswith("/uploaded/000.tar")]) < 12
    assert ShardIndex.load(next((tmp_path / "user-cache").rglob("*.swi")).as_posix()).header.etag
    other = s3.put("uploaded/001.tar", numbered_tar(80, 8, 1000))
    s3.put("uploaded/001.tar.swi", Path(index_path(str(local))).read_bytes())
    with pytest.raises(sw.StaleIndexError, match="has changed since it was indexed"):
        len(sw.tar(other, storage=s3.unhedged))


def test_a_remote_shard_without_an_end_is_refused_unless_that_is_accepted(s3):
    url = s3.put("endless/000.tar", numbered_tar(0, 8, 1000)[: 5 * 2560])
    for _ in range(2):
        with pytest.raises(sw.DataError, match=r"no end.*the 5 samples") as caught:
            len(sw.tar(url, storage=s3.unhedged))
        assert caught.value.url == url
        check_epoch(loader(sw.tar(url, storage=s3.unhedged, accept_unfinished=True)), 5)


def test_an_index_whose_shard_is_gone_from_the_store_is_told(s3):
    urls = put_indexed_shards(s3, "lost", [3, 4])
    s3.delete("lost/000.tar")
    for pattern in (s3.url("lost/"), s3.url("lost/*.tar")):
        with pytest.raises(sw.MissingShardError, match="remove the index files") as caught:
            sw.tar(pattern, storage=s3.unhedged)
        assert caught.value.url == urls[0]
    assert len(sw.tar(urls[1:], storage=s3.unhedged)) == 4


def test_a_damaged_index_beside_a_shard_is_an_error_and_a_copy_of_it_is_not(s3, user_cache):
    (url,) = put_shards(s3, "damaged", [5])
    assert len(sw.tar(url, storage=s3.unhedged)) == 5
    (copy,) = user_cache.rglob("*.swi")
    copy.write_bytes(b"x" * 100)
    assert len(sw.tar(url, storage=s3.unhedged)) == 5
    copy.unlink()
    s3.put("damaged/000.tar.swi", b"x" * 100)
    with pytest.raises(sw.DataError, match="the index can't be used") as caught:
        len(sw.tar(url, storage=s3.unhedged))
    assert caught.value.url == f"{url}.swi"


def test_globs_directories_and_lists_name_remote_shards(s3):
    urls = put_shards(s3, "listed", [3, 4, 5])
    s3.put("listed/shards.json", b'{"000.tar": 3, "002.tar": 5}')
    s3.put("listed/bad.json", b'{"__kind__": "wids-shard-index-v1", "wids_version": 1, '
           b'"shardlist": [{"url": "/etc/passwd", "nsamples": 1}]}')  # fmt: skip
    for pattern, count in (
        (s3.url("listed/*.tar"), 12),
        (s3.url("listed/"), 12),
        (s3.url("listed/{000..001}.tar"), 7),
        (s3.url("listed/shards.json"), 8),
        ([urls[2], urls[0]], 8),
    ):
        assert len(sw.tar(pattern, storage=s3.unhedged)) == count, pattern
    with pytest.raises(sw.DataError, match="a file of this machine"):
        sw.tar(s3.url("listed/bad.json"), storage=s3.unhedged)


def test_names_as_long_as_a_file_system_takes_have_an_index_in_a_directory(tmp_path):
    # 251 bytes: with the suffix, and more with a digest, the index's name would be too long.
    names = [f"{'a' * 246}.tar", f"{'é' * 123}.tar"]
    for name in names:
        (tmp_path / name).write_bytes(numbered_tar(0, 3, 100))
        for _ in range(2):
            assert len(sw.tar(tmp_path / name, index=tmp_path / "index")) == 3
    assert len(list((tmp_path / "index").glob("*.swi"))) == 2
    short = Path(index_path("s3://bucket/000.tar", str(tmp_path)))
    assert short.name.startswith("000.tar-")
