"""Building indexes: in parallel, again where needed, and whole whenever it is stopped."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest

from shardwise.base.errors import DataError, MissingShardError, WorkerError
from shardwise.sources.tar.index import build as build_module
from shardwise.sources.tar.index.build import build_index, build_indexes, payload_digests
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from shardwise.storage import open_file
from tests.support.tars import make_shards, payload, write_tar
from tests.support.waiting import wait_for

PATIENCE_S = 120


def statuses(results):
    return [result.status for result in results]


@pytest.mark.parametrize("jobs", [None, 1, 2])
def test_shards_are_indexed_once_and_again_when_they_change(tmp_path, jobs):
    urls = make_shards(tmp_path, [3, 0, 5])
    seen = []
    results = build_indexes(urls, jobs=jobs, progress=lambda *done: seen.append(done))
    assert statuses(results) == ["built"] * 3
    assert [result.url for result in results] == urls
    assert [result.num_samples for result in results] == [3, 0, 5]
    assert [result.path for result in results] == [f"{url}.swi" for url in urls]
    assert [(done, total) for done, total, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert sorted(url for _, _, url in seen) == urls
    assert [ShardIndex.load(result.path).num_samples for result in results] == [3, 0, 5]
    if jobs != 1:
        return
    times = [os.stat(result.path).st_mtime_ns for result in results]
    write_tar(urls[2], [("new.txt", b"1")])
    results = build_indexes(str(tmp_path), jobs=jobs)
    assert statuses(results) == ["fresh", "fresh", "built"]
    assert [os.stat(result.path).st_mtime_ns for result in results][:2] == times[:2]
    assert [result.num_samples for result in results] == [3, 0, 1]
    assert statuses(build_indexes(urls, jobs=jobs, force=True)) == ["built"] * 3


def test_a_damaged_shard_does_not_stop_the_others(tmp_path):
    urls = make_shards(tmp_path, [3, 3, 3])
    os.truncate(urls[1], 1000)
    missing = str(tmp_path / "none.tar")
    results = build_indexes([*urls, missing], jobs=2)
    assert statuses(results) == ["built", "failed", "built", "failed"]
    assert "cut short" in str(results[1].error)
    assert results[1].error.url == urls[1]
    assert isinstance(results[3].error, MissingShardError)
    assert sorted(p.name for p in tmp_path.glob("*.swi")) == [
        "part-000.tar.swi",
        "part-002.tar.swi",
    ]


def test_a_damaged_index_is_made_again(tmp_path):
    (url,) = make_shards(tmp_path, [3])
    build_indexes(url)
    Path(index_path(url)).write_bytes(b"damaged")
    assert statuses(build_indexes(url)) == ["built"]
    assert ShardIndex.load(index_path(url)).num_samples == 3


def test_digests_are_those_of_the_payloads(tmp_path):
    (url,) = make_shards(tmp_path, [50])
    assert build_index(url).digests("txt") is None
    build_indexes(url)
    # An index without digests does not do for one with.
    assert statuses(build_indexes(url, digests=True)) == ["built"]
    assert statuses(build_indexes(url, digests=True)) == ["fresh"]
    assert statuses(build_indexes(url)) == ["fresh"]
    index = ShardIndex.load(index_path(url))
    for field in index.fields:
        wanted = [zlib.crc32(payload(g, field)) for g in range(50)]
        assert index.digests(field).tolist() == wanted


@pytest.mark.parametrize("buffer_bytes", [1, 700, 5000, 1 << 20])
def test_digests_do_not_depend_on_how_much_is_read_at_once(tmp_path, monkeypatch, buffer_bytes):
    from shardwise.sources.tar.index import build as digests_module

    monkeypatch.setattr(digests_module, "_READ_BYTES", buffer_bytes)
    monkeypatch.setattr(digests_module, "_ROWS", 7)
    sizes = [0, 1, 511, 512, 513, 3000, 10_000, 0, 0, 6000]
    members = [
        (f"{i}.{f}", random.Random(n).randbytes(n)) for i, n in enumerate(sizes) for f in "ab"
    ]
    url = write_tar(tmp_path / "x.tar", members)
    index = build_index(url)
    found = {(f, int(r)): int(d) for f, rows, digests in payload_digests(open_file(url), index)
             for r, d in zip(rows, digests, strict=True)}  # fmt: skip
    assert found == {(name[-1], int(name[:-2])): zlib.crc32(data) for name, data in members}


def test_a_shard_that_grows_meanwhile_is_refused(tmp_path, monkeypatch):
    (url,) = make_shards(tmp_path, [3])
    real = build_module.scan_members

    def scan_while_it_grows(scan, ignored):
        yield from real(scan, ignored)
        with open(url, "ab") as file:
            file.write(bytes(512))

    monkeypatch.setattr(build_module, "scan_members", scan_while_it_grows)
    with pytest.raises(DataError, match="changed while it was indexed"):
        build_index(url)


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz", "X.TAR.ZST"])
def test_compressed_shards_are_refused_by_name(tmp_path, name):
    url = str(tmp_path / name)
    with pytest.raises(DataError, match=r"unpack it with `\w+ -d") as caught:
        build_index(url)
    assert caught.value.url == url


def test_fewer_than_one_job_is_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs=0"):
        build_indexes(make_shards(tmp_path, [1]), jobs=0)


INDEXING = """
import sys
from shardwise.sources.tar.index.build import build_indexes
if __name__ == "__main__":
    results = build_indexes(sys.argv[1], jobs=2, digests=True)
    print(sum(result.status == "fresh" for result in results))
"""


def test_a_killed_run_leaves_whole_indexes_and_no_workers(tmp_path):
    directory = tmp_path / "shards"
    (first,) = make_shards(directory, [1000])
    for i in range(1, 20):
        shutil.copy(first, directory / f"part-{i:03d}.tar")
    # A minute's reading, of zeros that take no space: the kill comes in the middle.
    header = tarfile.TarInfo("1.bin")
    header.size = 1 << 36
    endless = directory / "part-020.tar"
    with endless.open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + header.size + 1024)
    script = tmp_path / "indexing.py"
    script.write_text(INDEXING)
    command = [sys.executable, str(script), str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(directory.glob("*.swi")), process=process)
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, PATIENCE_S)
    assert not alive
    left = sorted(directory.glob("*.swi"))
    assert 0 < len(left) <= 20
    endless.unlink()
    # Globs leave out hidden files: what was being written when it was killed has such a name.
    assert {ShardIndex.load(str(path)).num_samples for path in left} == {1000}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert int(done.stdout) == len(left)
    assert len(list(directory.glob("*.swi"))) == 20


def test_a_worker_that_dies_is_an_error(tmp_path, monkeypatch):
    urls = make_shards(tmp_path, [1, 1])
    monkeypatch.setattr(build_module, "_refresh", _die)
    with pytest.raises(WorkerError, match="an indexing process died"):
        build_indexes(urls, jobs=2)


def _die(url, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def test_links_and_fields_are_described_in_the_header(tmp_path):
    (url,) = make_shards(tmp_path, [4])
    header = build_index(url).header
    assert (header.name, header.num_samples) == ("part-000.tar", 4)
    assert header.fields == ("bin", "cls", "txt")
    assert (header.num_bytes, header.mtime_ns) == open_file(url).stat()[:2]
    assert header.to_metadata()["fields"] == header.fields
    assert header.to_metadata()["writer"].startswith("shardwise ")
    assert np.all(build_index(url).locate("bin", np.arange(4))[1] == 16)
