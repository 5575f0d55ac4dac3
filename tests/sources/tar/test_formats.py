"""What is read: every way in which tars are written, held against the standard library."""

from __future__ import annotations

import re
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.scan import walk as scan_module
from shardwise.sources.tar.scan.byte_source import FileBytes, refuse_compressed_start
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import open_file
from tests.support.properties import examples
from tests.support.raw_tars import END, header, member, pax_records
from tests.support.tars import tar_bytes, write_tar

RULE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
Table = dict[str, dict[str, tuple[int, int]]]


def table_of(index: ShardIndex) -> Table:
    """Each sample's fields with offset and size."""
    table: Table = {key: {} for key in index.keys}
    rows = np.arange(index.num_samples)
    for field in index.fields:
        offsets, sizes = index.locate(field, rows)
        for row, key in enumerate(index.keys):
            found = (int(offsets[row]), int(sizes[row]))
            assert index.locate_one((field,), row)[0][1] == found[1]
            if found[1] >= 0:
                assert index.locate_one((field,), row) == [found]
                table[key][field] = found
    return table


def table_of_tarfile(path) -> Table:
    """The same by the standard library and the rule for names."""
    table: Table = {}
    with tarfile.open(path, "r:") as tar:
        for info in tar:
            match = RULE.fullmatch(info.name)
            if info.isreg() and match:
                place = (info.offset_data, info.size)
                table.setdefault(match[1], {})[match[2].lower()] = place
    return table


def index_bytes(tmp_path, data: bytes, **options: bool) -> ShardIndex:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    return build_index(str(path), **options)


SMALL_TAR = tar_bytes([(name, b"i" * 700) for name in ("a.txt", "b.txt", "c.txt")])
# Among them, what looks like headers and must not be taken for them.
PAYLOADS = {
    "empty": b"",
    "byte": b"x",
    "block": b"x" * 512,
    "more": b"x" * 2900,
    "tar": SMALL_TAR,
    "first part": SMALL_TAR[:1536],
    "last part": SMALL_TAR[512:],
    "zeros": bytes(2048),
    "open end": member(b"\0", b"", kind=b"x") + header(b"fake.txt", 10**6),
}
NAMES = st.one_of(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    st.from_regex(r"(\./)?[a-z]{1,8}/[a-z]{1,8}", fullmatch=True),
    st.integers(90, 400).map(lambda n: "d" * (n // 2) + "/" + "k" * (n // 2)),
    st.just("ключ"),
)
FIELDS = st.lists(
    st.sampled_from(["jpg", "CLS", "seg.png", "a-long-extension.json"]), min_size=1, unique=True
)
SAMPLES = st.lists(st.tuples(NAMES, FIELDS), max_size=12, unique_by=lambda sample: sample[0])


@settings(deadline=None, max_examples=examples(60))
@given(
    samples=SAMPLES,
    payloads=st.lists(st.sampled_from(sorted(PAYLOADS)), min_size=1, max_size=5),
    how=st.sampled_from(["ustar", "gnu", "pax"]),
    sizes=st.sampled_from([(64 << 10, 1 << 20), (1024, 2048), (512, 4096), (3584, 3584)]),
    sparse_stride=st.sampled_from([0, 1024, 16 << 10]),
)
def test_any_shard_is_read_as_the_standard_library_reads_it(
    tmp_path_factory, samples, payloads, how, sizes, sparse_stride
):
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    members = []
    for key, fields in samples:
        if how == "ustar" and len(key) > 140:
            continue
        for field in fields:
            payload = PAYLOADS[payloads[len(members) % len(payloads)]]
            members.append((f"{key}.{field}", payload))
    write_tar(path, members, format=how)
    with pytest.MonkeyPatch.context() as patch:
        # Small reads, so that their borders fall everywhere; either way of walking by itself.
        patch.setattr(FileBytes, "first_read_bytes", sizes[0])
        patch.setattr(FileBytes, "block_bytes", sizes[1])
        patch.setattr(scan_module, "_END_READ_BYTES", sizes[1])
        patch.setattr(FileBytes, "sparse_stride", sparse_stride)
        patch.setattr(FileBytes, "sparse_headers", 3)
        index = build_index(str(path))
    assert table_of(index) == table_of_tarfile(path)
    assert index.header.has_end


@pytest.mark.parametrize("how", ["ustar", "gnu", "pax"])
@pytest.mark.parametrize("size", [10, 60_000])
def test_thousands_of_members_are_read_in_each_format(tmp_path, how, size):
    directory = "d" * 90 + "/"
    path = write_tar(
        tmp_path / "x.tar",
        [(f"{directory}{i:06d}.{f}", b"x" * size) for i in range(700) for f in ("a", "b")],
        format=how,
    )
    assert table_of(build_index(path)) == table_of_tarfile(path)


def test_between_large_members_only_headers_are_read(tmp_path):
    path = write_tar(tmp_path / "x.tar", [(f"{i}.jpg", bytes(50_000)) for i in range(300)])
    file = open_file(path)
    num_bytes = file.stat().num_bytes
    scan = Scan(file, num_bytes, url=path)
    assert sum(len(run.positions) for run in scan.runs()) == 300
    assert scan.num_bytes_read <= 0.05 * num_bytes


@pytest.mark.parametrize("how", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_over_8_gib_are_read(tmp_path, how):
    path = tmp_path / "x.tar"
    large = 9 << 30
    with path.open("wb") as file:
        for name, size in (("a.bin", large), ("a.cls", 1), ("b.bin", 5)):
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(how))
            file.seek(-(-size // 512) * 512, 1)
        file.write(END)
    index = build_index(str(path))
    table = table_of(index)
    assert table == table_of_tarfile(path)
    assert table["a"]["bin"][1] == large
    # The other members do not pay for it: counted in blocks, the offsets still take four bytes.
    assert len(index.to_bytes()) < 1500


def test_v7_headers_without_magic_are_read(tmp_path):
    old = {"magic": b"", "kind": b"\0"}
    data = b"".join(
        [
            member(b"dir/", b"", **old),
            member(b"dir/a.jpg", b"12", **old),
            member(b"dir/a.cls", b"3", **old),
            member(b"b.jpg", b"456"),
            member(b"c.jpg", b"7" * 600, **old),
        ]
    )
    index = index_bytes(tmp_path, data + END)
    assert table_of(index) == table_of_tarfile(tmp_path / "x.tar")
    assert index.header.ignored == {"directory": 1}


def test_pax_sizes_go_before_those_of_the_header(tmp_path):
    record = pax_records(size=700, path="long.jpg")
    data = member(b"x", record, kind=b"x") + header(b"short.jpg", 0) + b"x" * 700 + bytes(324)
    before = member(b"a.jpg", b"1")
    index = index_bytes(tmp_path, before + data + member(b"z.jpg", b"9") + END)
    assert table_of(index)["long"] == {"jpg": (2560, 700)}
    assert index.num_samples == 3


def test_global_headers_that_name_no_member_are_passed_over(tmp_path):
    comment = member(b"g", pax_records(comment="made by hand"), kind=b"g")
    index = index_bytes(tmp_path, comment + member(b"a.jpg", b"1") + END)
    assert table_of(index) == {"a": {"jpg": (1536, 1)}}
    for record in (pax_records(path="b.jpg"), pax_records(size=1)):
        with pytest.raises(DataError, match="global header that gives all members one"):
            index_bytes(tmp_path, member(b"g", record, kind=b"g") + member(b"a.jpg", b"1") + END)


def test_what_is_no_field_is_left_out_and_counted(tmp_path):
    data = b"".join(
        [
            member(b"dir/", b"", kind=b"5"),
            member(b"dir/a.jpg", b"1"),
            # The size of a link says nothing: no payload follows.
            header(b"dir/latest", 4000, kind=b"1"),
            header(b"dir/first", 0, kind=b"2"),
            header(b"fifo", 0, kind=b"6"),
            member(b"dir/a.cls", b"2"),
            member(b"README", b"hello"),
            member(b"dir/._a.jpg", b"finder"),
            member(b"__meta__/info.json", b"{}"),
        ]
    )
    index = index_bytes(tmp_path, data + END)
    assert table_of(index) == {"dir/a": {"jpg": (1024, 1), "cls": (3584, 1)}}
    assert index.header.ignored == {
        "directory": 1, "hard link": 1, "symbolic link": 1, "special file": 1,
        "no extension": 1, "hidden": 1, "metadata": 1,
    }  # fmt: skip


def test_a_long_name_ends_at_its_nul_whatever_its_header_says(tmp_path):
    name = b"d/" * 60 + b"a.jpg\0"
    for stated in (1, len(name) - 3, 512):
        padded = name.ljust(512, b"\0")
        data = header(b"././@LongLink", stated, kind=b"L", magic=b"ustar  \0") + padded
        for more in (0, 2 << 20):
            path = tmp_path / "x.tar"
            path.write_bytes(member(b"0.bin", bytes(more)) + data + member(b"a.jpg", b"1") + END)
            index = build_index(str(path))
            assert list(index.keys) == ["0", "d/" * 60 + "a"]
            assert table_of(index) == table_of_tarfile(path)


@pytest.mark.parametrize("more", [b"", pax_records(size=1)])
def test_a_name_with_a_nul_is_refused(tmp_path, more):
    record = pax_records(path="a\0.jpg") + more
    data = member(b"x", record, kind=b"x") + member(b"a.jpg", b"1") + member(b"a.cls", b"2") + END
    with pytest.raises(DataError, match="NUL") as caught:
        index_bytes(tmp_path, data)
    assert caught.value.offset == 0


def test_members_of_unknown_types_are_told(tmp_path, caplog):
    data = member(b"a.jpg", b"1") + member(b"a.cls", b"22", kind=b"A") + END
    index = index_bytes(tmp_path, data)
    assert (index.fields, index.header.ignored) == (("jpg",), {"unknown type": 1})
    assert "a type that tar does not know (unknown type: 1)" in caplog.text


def test_shards_whose_names_give_no_fields_say_so_when_they_are_opened(tmp_path):
    urls = [write_tar(tmp_path / f"{i}.tar", [("0001", b"x"), ("0002", b"y")]) for i in range(2)]
    sentence = r"no samples: all members are left out \(no extension: 4\).*0001\.jpg"
    with pytest.raises(DataError, match=sentence) as caught:
        len(sw.tar(urls))
    assert caught.value.url == urls[0]
    assert len(sw.tar([*urls, write_tar(tmp_path / "2.tar", [("a.txt", b"1")])])) == 1
    with pytest.raises(DataError, match=r"no samples: all members are left out \(hidden: 1\)"):
        len(sw.tar(write_tar(tmp_path / "3.tar", [(".a.txt", b"1")])))


def test_members_without_a_field_are_told(tmp_path, caplog):
    index_bytes(tmp_path, member(b"a.jpg", b"1") + member(b"b", b"22") + END)
    assert "(no extension: 1)" in caplog.text


@pytest.mark.parametrize("data", [END, bytes(10240), bytes(512), bytes(5 << 20)])
def test_a_shard_without_members_is_empty(tmp_path, data):
    index = index_bytes(tmp_path, data)
    assert (index.num_samples, index.fields, list(index.keys)) == (0, (), [])
    index.save(str(tmp_path / "x.swi"))
    assert ShardIndex.load(str(tmp_path / "x.swi")).num_samples == 0


@pytest.mark.parametrize("padding", [0, 512, 3 * 512, 10240, 3 << 20, 700])
def test_any_number_of_zeros_may_end_a_shard(tmp_path, padding):
    data = member(b"a.jpg", b"1") + member(b"b.jpg", b"1") + bytes(padding)
    index = index_bytes(tmp_path, data, accept_unfinished=not padding)
    assert list(index.keys) == ["a", "b"]
    assert index.header.has_end == (padding > 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an empty file"),
        (b"hello", "cut short"),
        (b"x" * 512, "no header, where one must begin"),
        (b"<html>" * 400, "no header, where one must begin"),
        (b"\x1f\x8b\x08", "compressed .* unpack it with `gzip -d .*x.tar"),
        (b"BZh9", "compressed .* unpack it with `bzip2 -d .*x.tar"),
        (b"\xfd7zXZ\0", "compressed .* unpack it with `xz -d .*x.tar"),
        (b"\x28\xb5\x2f\xfd", "compressed .* unpack it with `zstd -d .*x.tar"),
        (b"PAR1" + bytes(2000), r"no tar, but a Parquet file: sw\.parquet"),
        (b"ARROW1\0\0" + bytes(2000), r"no tar, but an Arrow file: sw\.parquet"),
    ],
)
def test_other_files_are_told_by_what_is_in_them(tmp_path, data, message):
    with pytest.raises(DataError, match=message):
        index_bytes(tmp_path, data)


def test_a_server_that_compresses_is_told_of():
    with pytest.raises(DataError, match=r"compressed \(gzip\).* \(Content-Encoding\)"):
        refuse_compressed_start(b"\x1f\x8b\x08", "http://host/a.tar")


def test_sparse_members_are_refused(tmp_path):
    sparse = member(b"a.jpg", b"1" * 100, kind=b"S")
    records = pax_records(**{"GNU.sparse.major": 1, "GNU.sparse.size": 5})
    for data in (sparse, member(b"x", records, kind=b"x") + member(b"a.jpg", b"1")):
        with pytest.raises(DataError, match="sparse member: pack the shard again"):
            index_bytes(tmp_path, member(b"0.jpg", b"") + data + END)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(b"a.jpg", b"12x"), "states no size that can be read"),
        (member(b"x", b"7 path\n", kind=b"x") + member(b"a.jpg", b""), ""),
        (member(b"x", b"20 path=abc\n", kind=b"x") + member(b"a.jpg", b""), "malformed record"),
        (member(b"x", b"9 size=x\n", kind=b"x") + member(b"a.jpg", b""), "states the size b'x'"),
        (header(b"x", 2 << 20, kind=b"x") + bytes(3 << 20), "more than 1048576 are no names"),
        (member(b"L", b"n" * 5000, kind=b"L") + member(b"a.jpg", b""), "name of 5000 bytes"),
    ],
)
def test_headers_that_make_no_sense_are_refused(tmp_path, data, message):
    if not message:
        # A malformed record that names nothing is not looked at.
        assert index_bytes(tmp_path, data.replace(b"7 path", b"7 ctim") + END).num_samples == 1
        return
    with pytest.raises(DataError, match=message) as caught:
        index_bytes(tmp_path, member(b"0.jpg", b"1") + data + END)
    assert caught.value.url == str(tmp_path / "x.tar")
    assert caught.value.offset in (1024, 2048)


def test_unusual_headers_among_usual_ones_are_read(tmp_path):
    usual = b"".join(member(b"%05d.jpg" % i, b"1" * 20) for i in range(500))
    odd = member(b"x", pax_records(size=4), kind=b"x") + header(b"odd.jpg", 0) + bytes(512)
    old = member(b"v7.jpg", b"1", magic=b"", kind=b"\0")
    more = b"".join(member(b"%05d.jpg" % i, b"1" * 20) for i in range(500, 1000))
    index = index_bytes(tmp_path, usual + odd + old + more + END)
    assert index.num_samples == 1002
    assert table_of(index)["odd"]["jpg"][1] == 4
