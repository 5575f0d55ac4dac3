"""Samples in storage order, by long reads that many rows share."""

from __future__ import annotations

import os

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.read import runs as runs_module
from shardwise.sources.tar.source import TarSource
from tests.support.python_code import printed_by
from tests.support.tars import make_shards, write_tar

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(runs_module, "_PIECE_BYTES", 8 << 10)
    monkeypatch.setattr(runs_module, "_MAX_ROWS", 24)
    monkeypatch.setattr(runs_module, "_APART_ROWS", 5)


def mixed(tmp_path):
    """Shards of samples that lack fields, are empty, or are longer than a piece."""
    draw = np.random.default_rng(3)
    urls = []
    for shard, num_samples in enumerate((61, 0, 1, 40)):
        members = []
        for i in range(num_samples):
            key = f"{shard}/{i:03d}" if shard else f"é{i}"
            if i % 7:
                members.append((f"{key}.bin", draw.bytes((20 << 10) if i % 11 == 3 else i)))
            members.append((f"{key}.cls", b"" if i % 5 == 2 else b"%d" % i))
        urls.append(write_tar(tmp_path / f"{shard}.tar", members))
    return TarSource(urls)


@pytest.mark.parametrize("fields", [None, ("cls",), ("bin",), ("cls", "bin"), ()])
@pytest.mark.parametrize("part", [(0, None), (3, 70), (61, 62), (60, 63), (9, 9)])
def test_a_run_gives_what_reading_by_id_gives(tmp_path, fields, part):
    source = mixed(tmp_path)
    start, stop = part[0], part[1] or source.manifest.num_samples
    ids = np.arange(start, stop)
    expected = source.read(ids, fields)
    names = source.fields if fields is None else fields
    keys, rows, seen = [], {name: [] for name in names}, []
    for columns in source.read_run(start, stop, fields):
        assert len(columns.keys)
        keys += columns.keys
        seen += columns.ids.tolist()
        for name in rows:
            rows[name] += columns.fields[name].to_list()
    assert seen == ids.tolist()
    assert keys == list(expected.keys)
    assert rows == {name: expected.fields[name].to_list() for name in rows}


def test_many_samples_share_a_read(tmp_path, monkeypatch):
    ds = sw.tar(make_shards(tmp_path, [50, 50]))
    reads = []
    file_type = type(ds.source._open_reader().file(0))
    read = file_type.read
    monkeypatch.setattr(file_type, "read", lambda *args: reads.append(args) or read(*args))
    assert [sample["cls"] for sample in ds] == [b"%d" % (g % 10) for g in range(100)]
    # 3 kB a sample, pieces of 8 kB: two samples a piece.
    assert len(reads) <= 52


def test_payloads_that_lie_far_apart_are_read_by_themselves(tmp_path):
    members = []
    for i in range(30):
        members += [(f"{i:03d}.bin", bytes(64 << 10)), (f"{i:03d}.cls", b"%d" % i)]
    ds = sw.tar(write_tar(tmp_path / "x.tar", members)).select("cls")
    sizes = [columns.num_bytes for columns in ds.source.read_run(0, 30, ("cls",))]
    assert sum(sizes) < 30 * 2
    assert [sample["cls"] for sample in ds] == [b"%d" % i for i in range(30)]


def test_a_shard_that_is_cut_while_it_is_read_names_the_payload(tmp_path):
    url = make_shards(tmp_path, [60])[0]
    ds = sw.tar(url)
    samples = iter(ds)
    read = [next(samples)["__key__"]]
    with open(url, "r+b") as file:
        file.truncate(40 * KIB)
    with pytest.raises(DataError) as caught:
        read.extend(sample["__key__"] for sample in samples)
    assert caught.value.url == url
    # 3 kB a sample: at the latest at the first one that is not whole.
    assert isinstance(caught.value, StaleIndexError)
    assert read == [f"s{g:08d}" for g in range(len(read))]
    assert len(read) <= caught.value.index <= 13


def test_shards_with_digests_are_checked(tmp_path):
    url = make_shards(tmp_path, [9])[0]
    build_indexes([url], digests=True, jobs=1)
    ds = sw.tar(url)
    assert ds.source.read_run(0, 9) is None
    time_ns = os.stat(url).st_mtime_ns
    with open(url, "r+b") as file:
        file.seek(512)
        file.write(b"damage")
    os.utime(url, ns=(time_ns, time_ns))
    with pytest.raises(DataError, match="CRC-32"):
        list(ds)


def test_a_subset_is_not_read_as_a_run(tmp_path):
    ds = sw.tar(make_shards(tmp_path, [20, 20]))
    assert [sample["__key__"] for sample in ds.subset([39, 0])] == ["s00000039", "s00000000"]


def test_reading_in_storage_order_takes_little_memory(tmp_path):
    members = [(f"{i:05d}.bin", bytes(4096)) for i in range(16_384)]
    url = write_tar(tmp_path / "x.tar", members)
    program = (
        "import resource, sys, shardwise as sw\n"
        "ds = sw.tar(sys.argv[1])\n"
        "next(iter(ds))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "num = sum(1 for _ in ds)\n"
        "print(num, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    num_samples, kib = map(int, printed_by(program, url).split())
    assert num_samples == 16_384
    # 80 MB of tar.
    assert kib < 12 * KIB
