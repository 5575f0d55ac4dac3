"""Manifest files: exact, small, and refused when they are not what was written."""

from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.sources.shard_names import NumberedNames, ShardNames
from shardwise.sources.tar.index.manifest_file import (
    ManifestFile,
    decode,
    encode,
    tag_of,
    tag_says_etag,
)
from shardwise.storage import FileStat
from tests.support.column_files import header_of, with_header

# Ten shards, eight of them numbered. Format version 1.
GOLDEN = (
    "WAMAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJzaGFyZHdpc2UtbWFuaWZlc3QiLCJ2ZXJzaW9uIjoiMSIs"
    "ImtpbmQiOiJ0YXIiLCJmaW5nZXJwcmludCI6IjAxMjM0NTY3ODlhYmNkZWYiLCJudW1fc2hhcmRzIjoiMTAiLCJudW1f"
    "c2FtcGxlcyI6IjEwNDUiLCJudW1fYnl0ZXMiOiIxMDk5NTExNjI3ODIxIiwiZmllbGRzIjoiW1wianBnXCIsIFwiY2xz"
    "XCJdIiwia2V5X2xlbmd0aCI6IjQiLCJoYXNfZGlnZXN0cyI6InRydWUiLCJudW1fdW5maW5pc2hlZCI6IjEiLCJuYW1l"
    "cyI6IltbXCJ0cmFpbi9wYXJ0LVwiLCBcIi50YXJcIiwgMCwgMywgOF0sIDJdIiwid3JpdGVyIjoic2hhcmR3aXNlIGdv"
    "bGRlbiJ9LCJ0YWciOnsiZHR5cGUiOiJVNjQiLCJzaGFwZSI6WzEwXSwiZGF0YV9vZmZzZXRzIjpbMCw4MF19LCJpbmRl"
    "eF9kaWdlc3QiOnsiZHR5cGUiOiJVNjQiLCJzaGFwZSI6WzEwXSwiZGF0YV9vZmZzZXRzIjpbODAsMTYwXX0sImJ5dGVz"
    "Ijp7ImR0eXBlIjoiVTY0Iiwic2hhcGUiOlsxMF0sImRhdGFfb2Zmc2V0cyI6WzE2MCwyNDBdfSwiaW5kZXhfYnl0ZXMi"
    "OnsiZHR5cGUiOiJVMzIiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOlsyNDAsMjQ0XX0sInNhbXBsZXMiOnsiZHR5"
    "cGUiOiJVOCIsInNoYXBlIjpbMTBdLCJkYXRhX29mZnNldHMiOlsyNDQsMjU0XX0sIm5hbWVfZW5kcyI6eyJkdHlwZSI6"
    "IlU4Iiwic2hhcGUiOlsyXSwiZGF0YV9vZmZzZXRzIjpbMjU0LDI1Nl19LCJuYW1lcyI6eyJkdHlwZSI6IlU4Iiwic2hh"
    "cGUiOlsyN10sImRhdGFfb2Zmc2V0cyI6WzI1NiwyODNdfSwiY2hlY2tzdW0iOnsiZHR5cGUiOiJVOCIsInNoYXBlIjpb"
    "NF0sImRhdGFfb2Zmc2V0cyI6WzI4MywyODddfX0gICAgICAgAAAAAAAAAIABAAAAAAAAgAIAAAAAAACAAwAAAAAAAIAE"
    "AAAAAAAAgAUAAAAAAACABgAAAAAAAIAHAAAAAAAAgAgAAAAAAACACQAAAAAAAIAAAAAAAAAAAAMAAAAAAAAABgAAAAAA"
    "AAAJAAAAAAAAAAwAAAAAAAAADwAAAAAAAAASAAAAAAAAABUAAAAAAAAAGAAAAAAAAAAbAAAAAAAAAAAAAAAAAQAAAQAA"
    "AAAAAAACAAAAAAAAAAMAAAAAAAAABAAAAAAAAAAFAAAAAAAAAAYAAAAAAAAABwAAAAAAAAAIAAAAAAAAAAkAAAAAAAAA"
    "cBEBAGRlZmdoaWprbG0GG8OkLnRhcnMzOi8vYnVja2V0L290aGVyLnRhcrothjc="
)


def golden() -> ManifestFile:
    names = [f"train/part-{number:03d}.tar" for number in range(8)]
    return ManifestFile(
        fingerprint="0123456789abcdef",
        names=[*names, "ä.tar", "s3://bucket/other.tar"],
        samples=np.arange(100, 110),
        lengths=np.array([2**40, *range(1, 10)]),
        tags=np.arange(10, dtype=np.uint64) + np.uint64(2**63),
        index_digests=np.arange(10, dtype=np.uint64) * np.uint64(3),
        index_bytes=np.full(10, 70000),
        fields=("jpg", "cls"),
        key_length=4,
        has_digests=True,
        num_unfinished=1,
        writer="shardwise golden",
    )


def check_equal(one: ManifestFile, other: ManifestFile) -> None:
    for field in dataclasses.fields(ManifestFile):
        mine, others = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(mine, others), field.name


def test_the_format_is_that_of_the_golden_file():
    data = base64.b64decode(GOLDEN)
    content = decode(data, path="golden.swm")
    check_equal(content, golden())
    assert encode(content) == data == encode(golden())
    assert isinstance(content.names, ShardNames)
    assert content.names.parts[0] == NumberedNames("train/part-", ".tar", 0, 3, 8)


def test_the_tags_of_versions_say_of_what_they_were_made():
    by_etag, by_time = FileStat(5, 7, '"a"'), FileStat(5, 7)
    assert tag_says_etag(tag_of(by_etag))
    assert not tag_says_etag(tag_of(by_time))
    assert tag_of(by_etag) == tag_of(FileStat(9, 8, '"a"')) != tag_of(FileStat(5, 7, '"b"'))
    assert tag_of(by_time) != tag_of(FileStat(5, 8))
    # They stand in files: the same in every release.
    assert [tag_of(by_etag), tag_of(by_time)] == [2246779066359448671, 18043468824926367086]


NAMES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12),
        st.integers(0, 2000).map("part-{:04d}.tar".format),
        st.integers(0, 2000).map("{}.tar".format),
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(st.data())
def test_what_is_written_is_read_and_written_again(data):
    names = data.draw(NAMES)
    if data.draw(st.booleans()):
        first = data.draw(st.integers(0, 10**6))
        names += [f"run-{number:05d}.tar" for number in range(first, first + 30)]
    count = len(names)
    samples = data.draw(st.lists(st.integers(0, 2**33), min_size=count, max_size=count))
    lengths = data.draw(st.lists(st.integers(0, 2**45), min_size=count, max_size=count))
    words = st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count)
    content = ManifestFile(
        fingerprint="f" * 16,
        names=names,
        samples=np.array(samples),
        lengths=np.array(lengths),
        tags=np.array(data.draw(words), np.uint64),
        index_digests=np.array(data.draw(words), np.uint64),
        index_bytes=np.array(lengths) // 1000,
        fields=tuple(data.draw(st.lists(st.text(max_size=5), max_size=3))),
        key_length=data.draw(st.none() | st.integers(0, 100)),
        writer="test",
    )
    written = encode(content)
    read = decode(written, path="a.swm")
    check_equal(read, content)
    assert encode(read) == written


def test_a_shard_takes_20_to_40_bytes():
    count = 100_000
    random = np.random.default_rng(0)
    tags, digests = random.integers(0, 2**63, (2, count)).astype(np.uint64)
    content = ManifestFile(
        fingerprint="0" * 16,
        names=[f"s3://bucket/train/part-{number:07d}.tar" for number in range(count)],
        samples=random.integers(9_000, 11_000, count),
        lengths=random.integers(4 * 10**8, 6 * 10**9, count),
        tags=tags,
        index_digests=digests,
        index_bytes=random.integers(90_000, 110_000, count),
        fields=("jpg",),
    )
    assert 20 * count <= len(encode(content)) <= 40 * count


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_byte_or_a_cut_is_refused_with_what_to_do(data):
    whole = base64.b64decode(GOLDEN)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        bad = whole[:at]
    else:
        bad = whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]
    with pytest.raises(DataError, match=r"shardwise index --merge") as caught:
        decode(bad, path="some/golden.swm")
    assert caught.value.url == "some/golden.swm"


def changed(**metadata: object) -> bytes:
    """The golden file with other metadata, and a checksum that holds."""
    whole = base64.b64decode(GOLDEN)
    header = header_of(whole)
    header["__metadata__"].update(metadata)
    return with_header(whole, header)


def test_a_later_version_says_to_update():
    with pytest.raises(DataError, match=r"version '3', .* reads '1' and '2': update"):
        decode(changed(version="3"), path="a.swm")


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "shardwise-index"},
        {"kind": "parquet"},
        {"num_shards": "9"},
        {"num_shards": "0"},
        {"num_shards": "4611686018427387904"},
        {"num_samples": "1046"},
        {"num_bytes": "-1"},
        {"fingerprint": "x"},
        {"names": "[10]"},
        {"names": '[["a", "", 0, 1, 10]]'},
        {"names": '[["a", "", 0, 1, 9223372036854775807], 2]'},
        {"names": '[["a", "", -1, 1, 8], 2]'},
        {"names": '[["a", "", 0, 99999999999, 8], 2]'},
        {"names": "[2, -2, 10]"},
        {"names": None},
        {"fields": "5"},
        {"key_length": "[]"},
    ],
)
def test_a_header_that_does_not_fit_is_refused_though_the_checksum_holds(metadata):
    decode(changed(), path="a.swm")
    with pytest.raises(DataError, match="the manifest can't be used"):
        decode(changed(**metadata), path="a.swm")
