"""The index: small, exact, and refused when it is not what was written."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.index_file import IndexHeader, read_header
from shardwise.sources.tar.index.shard_index import Keys, ShardIndex, index_path
from tests.support.column_files import header_of, with_header
from tests.support.tars import write_tar

# Two samples with "jpg" (3 and 70,000 bytes); the second has "cls" too (1 byte). Format version 1.
GOLDEN = (
    "qAMAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJzaGFyZHdpc2UtaW5kZXgiLCJ2ZXJzaW9uIjoiMSIsIm"
    "5hbWUiOiJnb2xkZW4udGFyIiwibnVtX2J5dGVzIjoiODE5MjAiLCJtdGltZV9ucyI6IjE3MDAwMDAwMDAxMjM0NTY3"
    "ODkiLCJudW1fc2FtcGxlcyI6IjIiLCJmaWVsZHMiOiJbXCJqcGdcIiwgXCJjbHNcIl0iLCJvcHRpb25hbCI6IltcIm"
    "Nsc1wiXSIsImtleV9sZW5ndGgiOiJudWxsIiwiaGFzX2RpZ2VzdHMiOiJ0cnVlIiwiaGFzX2VuZCI6InRydWUiLCJp"
    "Z25vcmVkIjoie1wiZGlyZWN0b3J5XCI6IDF9Iiwid3JpdGVyIjoic2hhcmR3aXNlIGdvbGRlbiJ9LCJzaXplOmpwZy"
    "I6eyJkdHlwZSI6IlUzMiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzAsOF19LCJjcmMzMjpqcGciOnsiZHR5"
    "cGUiOiJVMzIiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOls4LDE2XX0sImNyYzMyOmNscyI6eyJkdHlwZSI6Il"
    "UzMiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzE2LDI0XX0sImtleXMiOnsiZHR5cGUiOiJVOCIsInNoYXBl"
    "IjpbNl0sImRhdGFfb2Zmc2V0cyI6WzI0LDMwXX0sImtleV9lbmRzIjp7ImR0eXBlIjoiVTgiLCJzaGFwZSI6WzJdLC"
    "JkYXRhX29mZnNldHMiOlszMCwzMl19LCJzdGFydHMiOnsiZHR5cGUiOiJVOCIsInNoYXBlIjpbMl0sImRhdGFfb2Zm"
    "c2V0cyI6WzMyLDM0XX0sIm9mZnNldDpqcGciOnsiZHR5cGUiOiJVOCIsInNoYXBlIjpbMV0sImRhdGFfb2Zmc2V0cy"
    "I6WzM0LDM1XX0sIm9mZnNldDpjbHMiOnsiZHR5cGUiOiJVOCIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzM1"
    "LDM3XX0sInNpemU6Y2xzIjp7ImR0eXBlIjoiVTgiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlszNywzOV19LC"
    "JjaGVja3N1bSI6eyJkdHlwZSI6IlU4Iiwic2hhcGUiOls0XSwiZGF0YV9vZmZzZXRzIjpbMzksNDNdfX0gICAgICAD"
    "AAAAcBEBAAcAAADvvq3eAAAAAAkAAABhw6QvYmIBBgIEAACK/wHQc++Z"
)


def golden_index() -> ShardIndex:
    header = IndexHeader(
        name="golden.tar",
        num_bytes=81920,
        mtime_ns=1_700_000_000_123_456_789,
        num_samples=2,
        fields=("jpg", "cls"),
        optional=frozenset({"cls"}),
        ignored={"directory": 1},
        has_digests=True,
        writer="shardwise golden",
    )
    columns = {
        "keys": np.frombuffer("aä/bb".encode(), np.uint8),
        "key_ends": np.array([1, 6], np.uint8),
        "starts": np.array([2, 4], np.uint8),
        "offset:jpg": np.array([0], np.uint8),
        "size:jpg": np.array([3, 70000], np.uint32),
        "crc32:jpg": np.array([7, 0xDEADBEEF], np.uint32),
        "offset:cls": np.array([0, 138], np.uint8),
        "size:cls": np.array([255, 1], np.uint8),
        "crc32:cls": np.array([0, 9], np.uint32),
    }
    return ShardIndex(header, columns)


def test_the_format_is_that_of_the_golden_file(tmp_path):
    data = base64.b64decode(GOLDEN)
    path = tmp_path / "golden.tar.swi"
    path.write_bytes(data)
    index = ShardIndex.load(str(path))
    assert index.to_bytes() == data == golden_index().to_bytes()
    assert list(index.keys) == ["a", "ä/bb"]
    assert index.fields == ("jpg", "cls")
    offsets, sizes = index.locate("cls", np.array([1, 0]))
    assert (offsets[0], sizes.tolist()) == ((4 + 138) * 512, [1, -1])
    assert index.locate_one(("jpg",), 1) == [(2048, 70000)]
    assert index.locate_one(("cls", "none"), 0) == [(0, -1), (0, -1)]
    assert index.digests("jpg").tolist() == [7, 0xDEADBEEF]
    assert (index.header.name, index.num_bytes) == ("golden.tar", 81920)
    assert index.header.mtime_ns == 1_700_000_000_123_456_789
    assert index.header.ignored == {"directory": 1}
    assert read_header(str(path)) == index.header


def test_the_digest_of_what_is_where_stands_in_manifests_and_stays():
    index = golden_index()
    assert index.content_digest() == 6037780181918917780
    # Another version of the shard, and an index without CRCs.
    assert index.of_version(5, '"etag"').content_digest() == 6037780181918917780
    other = ShardIndex(replace(index.header, name="other.tar"), index._columns)
    assert other.content_digest() == 6037780181918917780
    columns = {name: column for name, column in index._columns.items() if "crc32" not in name}
    plain = ShardIndex(replace(index.header, has_digests=False), columns)
    assert plain.content_digest() == 6037780181918917780
    columns["size:jpg"] = np.array([3, 70001], np.uint32)
    assert ShardIndex(plain.header, columns).content_digest() != 6037780181918917780


def test_the_layout_is_that_of_safetensors():
    data = golden_index().to_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())
    assert length % 8 == 0
    end = 0
    for column in header.values():
        begin, end_of_this = column["data_offsets"]
        itemsize = {"U8": 1, "U16": 2, "U32": 4, "U64": 8}[column["dtype"]]
        assert begin == end
        assert begin % itemsize == 0
        assert end_of_this - begin == itemsize * np.prod(column["shape"])
        end = end_of_this
    assert 8 + length + end == len(data)
    assert int.from_bytes(data[-4:], "little") == zlib.crc32(data[:-4])


SHAPES = {
    "one field": (("bin",), lambda g, f: 100 + g % 50),
    "three fields": (("jpg", "json", "cls"), lambda g, f: {"jpg": 900 + g % 700}.get(f, 1 + g % 9)),
    "images": (("jpg", "cls"), lambda g, f: 50_000 + g * 37 % 5000 if f == "jpg" else 1 + g % 3),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_index_takes_at_most_8_bytes_a_field_besides_keys(tmp_path, shape):
    fields, size = SHAPES[shape]
    num_samples = 600
    url = write_tar(
        tmp_path / "x.tar",
        [(f"{g:06d}.{f}", bytes(size(g, f))) for g in range(num_samples) for f in fields],
    )
    index = build_index(url)
    data = index.to_bytes()
    num_header_bytes = 8 + int.from_bytes(data[:8], "little") + 4
    num_key_bytes = 6 * num_samples
    assert len(data) - num_header_bytes - num_key_bytes <= 8 * num_samples * len(fields)
    # The header is the same for any number of samples.
    assert num_header_bytes < 1500


def test_columns_of_equal_values_take_one_element(tmp_path):
    url = write_tar(
        tmp_path / "x.tar",
        [(f"{g:04d}.{f}", bytes(n)) for g in range(1000) for f, n in (("bin", 100), ("cls", 1))],
    )
    assert len(build_index(url).to_bytes()) < 1500 + 4 * 1000 + 2 * 1000


@settings(deadline=None, max_examples=50)
@given(
    keys=st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=30),
    data=st.data(),
)
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, keys, data):
    path = str(tmp_path_factory.mktemp("index") / "x.swi")
    raw = [key.encode("utf-8", "surrogatepass") for key in keys]
    lengths = {len(key) for key in raw}
    length = lengths.pop() if len(lengths) == 1 else None if raw else 0
    sizes = [data.draw(st.sampled_from([0, 1, 254, 255, 65535, 1 << 33, -1])) for _ in keys]
    dtype = np.dtype(data.draw(st.sampled_from(["u8"])))
    columns = {
        "keys": np.frombuffer(b"".join(raw), np.uint8),
        "starts": np.arange(len(keys), dtype=np.uint16),
        "offset:a.b": np.zeros(1, np.uint8),
        "size:a.b": np.array([s % (1 << 64) for s in sizes], dtype),
    }
    if length is None:
        columns["key_ends"] = np.cumsum([len(key) for key in raw]).astype(np.uint32)
    header = IndexHeader(
        name="x", num_bytes=1, mtime_ns=-5, num_samples=len(keys), fields=("a.b",),
        optional=frozenset({"a.b"}), key_length=length,
    )  # fmt: skip
    ShardIndex(header, columns).save(path)
    loaded = ShardIndex.load(path)
    shown = [key.decode("utf-8", "surrogateescape") for key in raw]
    assert list(loaded.keys) == loaded.keys[:] == shown
    assert [loaded.keys[i] for i in range(-len(keys), 0)] == shown
    assert loaded.keys[::-2] == shown[::-2]
    rows = np.arange(len(keys))[::-1]
    assert loaded.keys.take(rows) == shown[::-1]
    assert loaded.locate("a.b", rows)[1].tolist() == sizes[::-1]
    assert [loaded.locate_one(("a.b",), i)[0][1] for i in range(len(keys))] == sizes
    assert loaded.header.mtime_ns == -5


def test_keys_know_their_bounds():
    keys = Keys(np.frombuffer(b"abcd", np.uint8), None, 2, 2)
    assert list(keys) == ["ab", "cd"]
    for row in (2, -3):
        with pytest.raises(IndexError, match=f"key {row} of 2"):
            keys[row]
    with pytest.raises(ValueError, match="do not take"):
        Keys(np.frombuffer(b"abc", np.uint8), None, 2, 2)
    with pytest.raises(ValueError, match="do not take"):
        Keys(np.frombuffer(b"abc", np.uint8), np.array([1, 2]), None, 2)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_or_cut_index_is_refused_with_what_to_do(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("index") / "golden.tar.swi"
    whole = bytearray(golden_index().to_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    is_cut = data.draw(st.booleans())
    if is_cut:
        del whole[at:]
    else:
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    loads = [ShardIndex.load, read_header] if is_cut and at < 600 else [ShardIndex.load]
    for load in loads:
        with pytest.raises(DataError, match=r"`shardwise index --force .*golden\.tar`") as caught:
            load(str(path))
        assert caught.value.url == str(path)


def rewritten(change) -> bytes:
    """The golden index with another header and a sound checksum."""
    whole = golden_index().to_bytes()
    header = header_of(whole)
    change(header)
    return with_header(whole, header)


def _of(*path, value):
    def change(header):
        for step in path[:-1]:
            header = header[step]
        header[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _of("__metadata__", "version", value="2"),
        _of("__metadata__", "format", value="else"),
        _of("__metadata__", "num_samples", value="-1"),
        _of("__metadata__", "num_samples", value="3"),
        _of("__metadata__", "num_samples", value="many"),
        _of("__metadata__", "fields", value='["jpg", "png"]'),
        _of("__metadata__", "fields", value="7"),
        _of("__metadata__", "key_length", value="5"),
        _of("__metadata__", "ignored", value="[]"),
        _of("__metadata__", value=[]),
        _of("starts", "data_offsets", value=[0, 1 << 40]),
        _of("starts", "data_offsets", value=[-8, -6]),
        _of("starts", "data_offsets", value=[4, 2]),
        _of("starts", "data_offsets", value="x"),
        _of("starts", "shape", value=[1 << 40]),
        _of("starts", "shape", value=[-2]),
        _of("starts", "shape", value=[2, 1]),
        _of("starts", "dtype", value="F32"),
        _of("starts", value=None),
        _of("checksum", "shape", value=[0]),
        lambda header: header.pop("checksum"),
        lambda header: header.pop("size:cls"),
        lambda header: header.pop("__metadata__"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(tmp_path, change):
    path = tmp_path / "golden.tar.swi"
    path.write_bytes(rewritten(lambda header: None))
    assert ShardIndex.load(str(path)).num_samples == 2
    path.write_bytes(rewritten(change))
    with pytest.raises(DataError, match="make it again with `shardwise index --force"):
        ShardIndex.load(str(path))


def test_an_index_lies_beside_its_shard_or_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert index_path("a/000.tar") == "a/000.tar.swi"
    assert index_path(f"file://{tmp_path}/a%20b.tar") == f"{tmp_path}/a b.tar.swi"
    assert index_path("s3://bucket/000.tar") == "s3://bucket/000.tar.swi"
    assert index_path("http://h/000.tar?sign=1") == "http://h/000.tar.swi?sign=1"
    assert index_path("http://h/0.tar?sign=1", "idx") == index_path("http://h/0.tar?sign=2", "idx")
    assert index_path("http://h/get?f=1", "idx") != index_path("http://h/get?f=2", "idx")
    assert index_path("s3://b/0.tar", "s3://b/idx/").startswith("s3://b/idx/0.tar-")
    train, val, whole = (
        index_path(url, "idx")
        for url in ("train/000.tar", "val/000.tar", str(tmp_path / "train" / "000.tar"))
    )
    assert train.startswith("idx/000.tar-")
    assert train.endswith(".swi")
    assert train == whole != val


def test_equal_columns_give_equal_bytes():
    index = golden_index()
    columns = {
        name: values.astype(values.dtype.newbyteorder(">"))
        for name, values in index._columns.items()
    }
    assert ShardIndex(index.header, columns).to_bytes() == index.to_bytes()
