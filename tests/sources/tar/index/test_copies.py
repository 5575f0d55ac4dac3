"""Copies of shards with their indexes are read; shards that were written anew are refused."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.base.errors import MissingShardError, StaleIndexError
from shardwise.sources.tar.index import index_store as index_store_module
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.shard_index import index_path
from shardwise.sources.tar.read import shards as shards_module
from shardwise.sources.tar.source import TarSource
from shardwise.storage import LocalFile
from tests.support.commands import run
from tests.support.raw_tars import END, header, member
from tests.support.tars import make_shards, payload, sample_key, write_tar

LONG_AGO_NS = 1_700_000_000_123_456_789


def indexed(directory: Path, sizes: list[int]) -> list[str]:
    """Shards of an earlier day, with indexes."""
    urls = make_shards(directory, sizes)
    for url in urls:
        os.utime(url, ns=(LONG_AGO_NS, LONG_AGO_NS))
    build_indexes(urls, jobs=1)
    return urls


def copy(way: str, old: Path, new: Path) -> None:
    """Copy a directory, or give it the times that a copy has."""
    if way == "cp -r":
        subprocess.run(["cp", "-r", old, new], check=True)
    elif way == "tar x":
        subprocess.run(["tar", "--format=gnu", "-cf", f"{new}.all", "-C", old, "."], check=True)
        new.mkdir()
        subprocess.run(["tar", "-xf", f"{new}.all", "-C", new], check=True)
    else:
        old.rename(new)
        for path in new.iterdir():
            os.utime(path, (0, 0))


def refuse(*_args: object, **_options: object) -> None:
    raise AssertionError("this must not be called")


@pytest.mark.extension
@pytest.mark.parametrize("way", ["cp -r", "tar x", "a container layer"])
def test_a_copied_dataset_is_read_by_its_indexes_and_nothing_is_written(tmp_path, monkeypatch, way):
    indexed(tmp_path / "old", [5, 0, 1, 2])
    new = tmp_path / "new"
    copy(way, tmp_path / "old", new)
    assert all(path.stat().st_mtime_ns != LONG_AGO_NS for path in new.glob("*.tar"))
    before = {path: path.stat().st_mtime_ns for path in new.iterdir()}
    new.chmod(0o555)
    monkeypatch.setattr(shards_module, "index_for", refuse)
    data = sw.tar(str(new))
    expected = [{"__key__": sample_key(g), "txt": payload(g, "txt")} for g in range(8)]
    assert [data.select("txt")[g] for g in range(8)] == expected
    # Another process looks for itself.
    assert pickle.loads(pickle.dumps(data))[7]["txt"] == payload(7, "txt")
    run("verify", new)
    assert {path: path.stat().st_mtime_ns for path in new.iterdir()} == before
    # `shardwise index` keeps the new time, so that nobody has to look again.
    assert [result.status for result in build_indexes(str(new), jobs=1)] == ["fresh"] * 4
    monkeypatch.setattr(index_store_module, "has_headers_of", refuse)
    assert sw.tar(str(new))[7]["txt"] == payload(7, "txt")


def test_a_copy_that_can_not_be_written_to_is_fresh_too(tmp_path, monkeypatch):
    def read_only(index, path):
        raise OSError(30, "Read-only file system", path)

    (url,) = indexed(tmp_path, [3])
    os.utime(url, (0, 0))
    monkeypatch.setattr(index_store_module.ShardIndex, "save", read_only)
    assert [result.status for result in build_indexes(url, jobs=1)] == ["fresh"]
    assert len(sw.tar(url)) == 3


def test_a_copy_costs_a_few_headers_and_a_shard_of_the_indexed_time_nothing(tmp_path, monkeypatch):
    members = [(f"{i:03d}.bin", bytes(100_000)) for i in range(100)]
    url = write_tar(tmp_path / "x.tar", members)
    build_indexes(url, jobs=1)
    num_bytes = 0
    spans, read = LocalFile.read_spans, LocalFile.read

    def counted_spans(self, offsets, ends, buffer, begin):
        nonlocal num_bytes
        num_bytes += ends[-1] - begin
        spans(self, offsets, ends, buffer, begin)

    def counted_read(self, offset, length):
        nonlocal num_bytes
        num_bytes += length
        return read(self, offset, length)

    monkeypatch.setattr(LocalFile, "read_spans", counted_spans)
    monkeypatch.setattr(LocalFile, "read", counted_read)
    assert TarSource(url).manifest.num_samples == 100
    assert num_bytes == 0
    os.utime(url, (0, 0))
    assert TarSource(url).manifest.num_samples == 100
    # Four headers, and the bytes that would say how many samples were removed.
    assert 0 < num_bytes <= 4 * 512 + 10


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_names_of_any_form_are_known_again(tmp_path, monkeypatch, form):
    names = ["a.JPG", "b/c.txt", "ä.txt", f"{'d' * 90}/{'e' * 60}.jpg", "f" * 96 + ".cls"]
    if form != "ustar":
        names += ["ö/" * 70 + "g.txt", "h" * 300 + ".txt"]
    monkeypatch.setattr(shards_module, "index_for", refuse)
    for name in names:
        url = write_tar(tmp_path / "x.tar", [(name, b"1"), ("x/__left__/out", b"")], format=form)
        build_indexes(url, force=True, jobs=1)
        os.utime(url, (0, 0))
        assert TarSource(url).manifest.num_samples == 1, name


def renamed(old: bytes, new: bytes):
    return lambda data: data.replace(header(old, 5), header(new, 5))


@pytest.mark.extension
@pytest.mark.parametrize(
    "change",
    [
        renamed(b"1.txt", b"9.txt"),
        renamed(b"2.txt", b"9.txt"),
        renamed(b"3.txt", b"9.txt"),
        lambda data: data.replace(header(b"2.txt", 5), header(b"2.txt", 7)),
        lambda data: data.replace(bytes(2048), member(b"4.txt", b"four!") + bytes(1024), 1),
        lambda data: data.replace(member(b"3.txt", b"value"), bytes(1024)),
    ],
    ids=["first", "middle", "last", "a size", "one more", "one less"],
)
def test_a_shard_of_the_same_size_with_other_headers_is_refused(tmp_path, change):
    path = tmp_path / "x.tar"
    data = b"".join(member(b"%d.txt" % i, b"value") for i in (1, 2, 3)) + END + END
    path.write_bytes(data)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    build_indexes(path, jobs=1)
    assert change(data) != data
    path.write_bytes(change(data))
    with pytest.raises(StaleIndexError, match="its headers are others") as caught:
        TarSource(path).manifest
    assert "5,120 bytes, changed 2023-11-14 22:13:20.123456789 UTC then" in str(caught.value)
    assert f"`shardwise index {path}`" in str(caught.value)
    assert "its headers are others" in run("verify", path, exit_code=1).output


def test_an_index_without_samples_is_no_index_of_a_shard_that_has_some(tmp_path):
    (url,) = indexed(tmp_path, [0])
    write_tar(url, [("a.txt", b"1")])
    with pytest.raises(StaleIndexError):
        TarSource(url).manifest


def test_an_index_may_say_any_time(tmp_path, monkeypatch):
    (url,) = indexed(tmp_path, [3])
    for mtime_ns in (2**63 - 1, 1 - 2**63, -1):
        index = index_store_module.ShardIndex.load(index_path(url))
        index.of_version(mtime_ns, "").save(index_path(url))
        assert TarSource(url).manifest.num_samples == 3
        with monkeypatch.context() as patch:
            patch.setattr(index_store_module, "has_headers_of", lambda *_: False)
            with pytest.raises(StaleIndexError, match=r"changed (2262|1677|1969)-"):
                TarSource(url).manifest


@pytest.mark.parametrize("written", ["{}", "{}/", "{}/*.tar", "{}/**/*.tar", "{}/p*"])
def test_an_index_whose_shard_is_gone_is_told_where_a_directory_is_named(tmp_path, written):
    urls = indexed(tmp_path, [2, 3, 4])
    os.unlink(urls[1])
    pattern = written.format(tmp_path)
    for call in (sw.tar, build_indexes):
        with pytest.raises(MissingShardError, match="remove the index files") as caught:
            call(pattern)
        assert Path(caught.value.url) == Path(urls[1])
    assert index_path(urls[1]) in str(caught.value)
    # Shards that are named are those that are meant.
    assert len(sw.tar([urls[0], urls[2]])) == 6
    assert len(sw.tar(f"{tmp_path}/part-{{000,002}}.tar")) == 6
    os.unlink(index_path(urls[1]))
    assert len(sw.tar(pattern)) == 6
