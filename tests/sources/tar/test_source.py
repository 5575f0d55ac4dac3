"""The tar source: the protocol, and what happens when shards and indexes do not fit."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.base.columns import BytesColumn
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from shardwise.sources.tar.read import reader as reader_module
from shardwise.sources.tar.read import shards as shards_module
from shardwise.sources.tar.source import TarSource
from shardwise.testing.sources import check_source
from tests.support.raw_tars import END, header, member
from tests.support.tars import make_shards, payload, sample_key, write_tar

FIELDS = ("bin", "cls", "txt")
PATIENCE_S = 120


def numbered(num_samples: int):
    return [
        {"__key__": sample_key(g), **{field: payload(g, field) for field in FIELDS}}
        for g in range(num_samples)
    ]


def read(source, ids, fields=None):
    """Rows as dicts of bytes, None for what is missing."""
    columns = source.read(np.array(ids, dtype=np.int64), fields)
    return [
        {"__key__": columns.keys[i]}
        | {k: None if c[i] is None else bytes(c[i]) for k, c in columns.fields.items()}
        for i in range(len(ids))
    ]


@pytest.mark.parametrize("digests", [False, True])
def test_a_tar_source_keeps_the_protocol(tmp_path, digests):
    urls = make_shards(tmp_path, [20, 0, 1, 7, 0])
    build_indexes(urls, digests=digests, jobs=1)
    check_source(TarSource(urls), expected=numbered(28))


def test_samples_that_lack_fields_keep_the_protocol(tmp_path):
    kinds = [("jpg", "cls"), ("jpg",), ("cls", "json"), ("empty",)]
    members, expected = [], []
    for i in range(40):
        sample = {
            f: b"" if f == "empty" else random.Random(i).randbytes(i * 40) for f in kinds[i * 7 % 4]
        }
        members += [(f"{i:03d}.{field}", data) for field, data in sample.items()]
        expected.append({"__key__": f"{i:03d}", **sample})
    first = write_tar(tmp_path / "0.tar", members[:30])
    num_first = len({name.partition(".")[0] for name, _ in members[:30]})
    second = write_tar(tmp_path / "1.tar", [m for m in members if m[0] >= f"{num_first:03d}"])
    third = write_tar(tmp_path / "2.tar", [("x.other", b"1")])
    source = TarSource([first, second, third])
    assert set(source.fields) == {"jpg", "cls", "json", "empty", "other"}
    check_source(source, expected=[*expected, {"__key__": "x", "other": b"1"}])


def test_a_source_without_samples_keeps_the_protocol(tmp_path):
    source = TarSource(make_shards(tmp_path, [0, 0]))
    check_source(source, expected=[])
    assert source.fields == ()


@pytest.mark.parametrize("gap", [0, 600, 1 << 20])
def test_what_is_read_does_not_depend_on_how_reads_are_joined(tmp_path, monkeypatch, gap):
    monkeypatch.setattr(shards_module, "GAP_BYTES", gap)
    monkeypatch.setattr(reader_module, "GAP_BYTES", gap)
    check_source(TarSource(make_shards(tmp_path, [15, 20])), expected=numbered(35))


def test_only_the_fields_asked_for_are_read(tmp_path):
    members = [(f"{i}.{f}", bytes(n)) for i in range(9) for f, n in (("jpg", 60_000), ("cls", 2))]
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    ids = np.arange(9)
    assert source.read(ids, ("cls",)).num_bytes == 18
    assert source.read(ids[:1], ("cls",)).num_bytes == 2
    assert source.read(ids, ()).num_bytes == 0
    assert 9 * 60_000 <= source.read(ids).num_bytes <= 9 * 62_000
    assert source.read(ids[:1]).num_bytes <= 62_000


def test_neighbours_are_read_at_once_into_one_buffer(tmp_path, monkeypatch):
    source = TarSource(make_shards(tmp_path, [200, 200]))
    num_reads = 0
    real = os.preadv

    def counted(*args):
        nonlocal num_reads
        num_reads += 1
        return real(*args)

    source.read(np.arange(3))
    monkeypatch.setattr(os, "preadv", counted)
    columns = source.read(np.random.default_rng(0).permutation(400))
    assert num_reads == 2
    buffers = {id(column.buffer) for column in columns.fields.values()}
    assert len(buffers) == 1
    assert all(isinstance(column, BytesColumn) for column in columns.fields.values())


def test_ids_and_fields_that_are_not_there_are_refused(tmp_path):
    source = TarSource(make_shards(tmp_path, [3]))
    for ids in ([3], [-1], [0, 1, 3], [-1, 2]):
        with pytest.raises(IndexError, match=r"must lie in \[0, 3\)"):
            source.read(np.array(ids))
    with pytest.raises(ValueError, match="no field 'jpg': the fields are 'bin', 'cls', 'txt'"):
        source.read(np.array([0]), ("cls", "jpg"))


def test_one_key_may_stand_in_two_shards(tmp_path):
    urls = [write_tar(tmp_path / f"{i}.tar", [("a.txt", b"%d" % i)]) for i in range(2)]
    assert [row["txt"] for row in read(TarSource(urls), [0, 1])] == [b"0", b"1"]


# Indexes: found, missing, stale.


def test_shards_without_index_are_indexed_once_and_that_is_said(tmp_path, caplog):
    urls = make_shards(tmp_path, [3, 4, 5])
    build_indexes(urls[:1])
    source = TarSource(urls)
    assert not caplog.records
    assert source.manifest.sizes.tolist() == [3, 4, 5]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("shardwise", logging.WARNING)
    assert "Indexing 2 of 3 shards (once)" in record.message
    assert f"`shardwise index {urls[1]} ...`" in record.message
    assert all(Path(index_path(url)).exists() for url in urls)
    caplog.clear()
    assert TarSource(urls).manifest.fingerprint == source.manifest.fingerprint
    assert not caplog.records


def test_indexes_that_cannot_be_saved_are_kept_in_memory(tmp_path, caplog):
    (tmp_path / "taken").write_text("a file")
    source = TarSource(make_shards(tmp_path, [3, 4]), index=tmp_path / "taken")
    check_source(source, expected=numbered(7))
    assert not list(tmp_path.rglob("*.swi"))
    assert "2 of 2 indexes can't be written" in caplog.records[1].message
    assert "index=..." in caplog.records[1].message


def test_indexes_elsewhere_are_used(tmp_path):
    urls = make_shards(tmp_path / "shards", [3, 4])
    source = TarSource(urls, index=tmp_path / "indexes")
    assert source.manifest.num_samples == 7
    assert len(list((tmp_path / "indexes").glob("*.swi"))) == 2
    assert not list((tmp_path / "shards").glob("*.swi"))
    assert read(source, [5])[0]["__key__"] == sample_key(5)


def test_a_damaged_index_is_refused(tmp_path):
    (url,) = make_shards(tmp_path, [300])
    build_indexes(url)
    path = Path(index_path(url))
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    with pytest.raises(DataError, match=f"shardwise index --force {url}"):
        TarSource(url).manifest
    # Damage behind the header shows when the index is first used.
    path.write_bytes(whole[:-2000] + bytes([whole[-2000] ^ 1]) + whole[-1999:])
    with pytest.raises(DataError, match=f"shardwise index --force {url}"):
        TarSource(url).read(np.array([0]))


@pytest.mark.parametrize("num_samples", [1, 4])
def test_a_shard_replaced_while_in_use_is_noticed_where_its_index_is_mapped(tmp_path, num_samples):
    urls = make_shards(tmp_path, [3, 4])
    source = TarSource(urls)
    source.manifest
    os.replace(make_shards(tmp_path / "other", [num_samples], start=90)[0], urls[1])
    build_indexes(urls)
    assert len(read(source, [0, 1])) == 2
    with pytest.raises(StaleIndexError, match="replaced while it was in use") as caught:
        source.read(np.array([4]))
    assert caught.value.url == urls[1]


def test_an_index_removed_while_in_use_is_made_again_in_memory(tmp_path):
    urls = make_shards(tmp_path, [3, 4])
    source = TarSource(urls)
    source.manifest
    os.unlink(index_path(urls[1]))
    check_source(source, expected=numbered(7))
    assert not Path(index_path(urls[1])).exists()


def test_a_bounded_number_of_indexes_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "max_open_files", lambda: 3)
    source = TarSource(make_shards(tmp_path, [2] * 10))
    check_source(source, expected=numbered(20))
    assert len(source.shards._mapped) <= 3 + 8  # threads may come in between


# Pickles and processes.


def test_a_source_pickles_without_its_indexes(tmp_path):
    urls = make_shards(tmp_path, [2000, 2000])
    source = TarSource(urls)
    source.read(np.arange(4000))
    pickled = pickle.dumps(source)
    assert len(pickled) < 4000
    assert read(pickle.loads(pickled), [3999, 0]) == read(source, [3999, 0])


OPENING = """
import sys
from shardwise.sources.tar.source import TarSource
print(TarSource(sys.argv[1]).manifest.fingerprint)
"""


def test_ranks_that_open_new_shards_at_the_same_moment_agree(tmp_path):
    make_shards(tmp_path, [300] * 8)
    command = [sys.executable, "-c", OPENING, str(tmp_path)]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    found = {rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert found == {TarSource(str(tmp_path)).manifest.fingerprint.encode() + b"\n"}
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 16
    for path in tmp_path.glob("*.swi"):
        assert ShardIndex.load(str(path)).num_samples == 300


# What is named.


def test_compressed_shards_are_refused_when_the_source_is_made(tmp_path):
    with pytest.raises(DataError, match=r"unpack it with `gzip -d '.*/b c.tar.gz'`"):
        TarSource([str(tmp_path / "a.tar"), str(tmp_path / "b c.tar.gz")])


def test_shard_lists_name_the_shards_and_are_held_against_them(tmp_path):
    urls = make_shards(tmp_path, [3, 4])
    names = [Path(url).name for url in urls]
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps(dict(zip(names, [3, 4], strict=True))))
    source = TarSource(sizes)
    assert source.urls == urls
    check_source(source, expected=numbered(7))
    sizes.write_text(json.dumps(dict(zip(names, [3, 5], strict=True))))
    with pytest.raises(DataError, match="the shard list says 5 samples, the shard has 4"):
        TarSource(str(sizes)).manifest
    with pytest.raises(ValueError, match="mixes shard lists"):
        TarSource([str(sizes), urls[0]])
    with pytest.raises(ValueError, match="named twice"):
        TarSource([str(sizes), str(sizes)])


def test_a_source_says_what_it_reads(tmp_path):
    urls = make_shards(tmp_path, [1, 1])
    assert repr(TarSource(urls[0])) == f"TarSource({urls[0]!r})"
    assert repr(TarSource(urls)) == f"TarSource({urls[0]!r}, ... 2 shards)"


def test_the_fingerprint_does_not_depend_on_where_shards_lie(tmp_path):
    here = TarSource(make_shards(tmp_path / "a", [3, 4])).manifest.fingerprint
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy2)
    assert TarSource(str(tmp_path / "b")).manifest.fingerprint == here
    assert TarSource(make_shards(tmp_path / "c", [4, 3])).manifest.fingerprint != here


def test_large_payloads_and_places_beyond_4_gib_are_read(tmp_path):
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(header(b"a.bin", 5 << 30))
        file.seek(5 << 30, 1)
        file.write(member(b"b.bin", b"behind") + END)
    source = TarSource(path)
    assert build_index(str(path)).locate_one(("bin",), 0)[0][1] == 5 << 30
    assert read(source, [1]) == [{"__key__": "b", "bin": b"behind"}]
    assert [row["bin"] for row in read(source, [1, 1])] == [b"behind"] * 2
