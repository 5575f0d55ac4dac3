"""Damaged shards: always an error that says where, never fewer samples in silence.

Each kind of damage is done 30 times, at other places: to a shard that was indexed before, and to
one that was not.
"""

from __future__ import annotations

import os
import pickle
import random
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.extensions.tools.shard_checks import verify_shard
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.sources.tar.index.shard_index import index_path
from shardwise.sources.tar.source import TarSource
from shardwise.storage import local
from tests.support.raw_tars import END, header, member
from tests.support.tars import make_shards, payload, sample_key

NUM_SAMPLES = 40
FIELDS = ("bin", "cls", "txt")
# Each member of these takes a header and a block.
MEMBER_BYTES = 1024


@pytest.fixture(
    params=[*range(10), *(pytest.param(i, marks=pytest.mark.long) for i in range(10, 30))]
)
def seed(request):
    return request.param


@pytest.fixture
def rng(seed):
    return random.Random(seed)


def shard_at(tmp_path, *, digests: bool = False, index: bool = False) -> str:
    (url,) = make_shards(tmp_path, [NUM_SAMPLES])
    if index:
        build_indexes(url, digests=digests, jobs=1)
    return url


def damage(url: str, change) -> None:
    """Change a shard's bytes, but not what `stat` says of it."""
    stat = os.stat(url)
    data = bytearray(Path(url).read_bytes())
    change(data)
    with open(url, "r+b") as file:
        file.write(data)
    os.utime(url, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def flip(byte: int, bit: int):
    def change(data: bytearray) -> None:
        data[byte] ^= 1 << bit

    return change


def read_all(url: str, **options: bool):
    source = TarSource(url, **options)
    columns = source.read(np.arange(source.manifest.num_samples))
    return columns.keys, {name: list(column) for name, column in columns.fields.items()}


def assert_found_by_verify(url: str, *, near: int) -> None:
    problems = verify_shard(url).problems
    assert problems
    assert any(p.offset is not None and abs(p.offset - near) <= 2 * MEMBER_BYTES for p in problems)
    assert all(url in p.url for p in problems)


def test_a_flipped_bit_in_a_header(tmp_path, seed, rng):
    url = shard_at(tmp_path, index=seed % 2 == 0)
    at = rng.randrange(NUM_SAMPLES * len(FIELDS)) * MEMBER_BYTES
    # All but the checksum itself, which may say the same number in another way.
    byte = rng.choice([b for b in range(512) if not 148 <= b < 156])
    damage(url, flip(at + byte, rng.randrange(8)))
    with pytest.raises(DataError, match="header") as caught:
        build_index(url)
    assert (caught.value.url, caught.value.offset) == (url, at)
    if at:
        assert "behind the member 's0" in str(caught.value)
    assert_found_by_verify(url, near=at)
    if seed % 2:
        with pytest.raises(DataError):
            read_all(url)


def test_a_flipped_bit_in_a_payload_with_digests(tmp_path, rng):
    url = shard_at(tmp_path, index=True, digests=True)
    sample, number = rng.randrange(NUM_SAMPLES), rng.randrange(len(FIELDS))
    field = FIELDS[number]
    at = (sample * len(FIELDS) + number) * MEMBER_BYTES + 512
    damage(url, flip(at + rng.randrange(len(payload(sample, field))), rng.randrange(8)))
    source = TarSource(url)
    for ids in ([sample], range(NUM_SAMPLES), [sample, 0]):
        with pytest.raises(DataError, match="CRC-32 differs") as caught:
            source.read(np.array(ids))
        error = caught.value
        found = (error.url, error.key, error.field, error.offset, error.index)
        assert found == (url, sample_key(sample), field, at, sample)
    # Fields that are whole can be read.
    others = tuple(f for f in FIELDS if f != field)
    assert len(source.read(np.arange(NUM_SAMPLES), others).keys) == NUM_SAMPLES
    (problem,) = verify_shard(url).problems
    assert (problem.key, problem.field, problem.offset) == (sample_key(sample), field, at)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_shard_cut_inside_a_member(tmp_path, rng, indexed):
    url = shard_at(tmp_path, index=indexed)
    length = rng.randrange(1, NUM_SAMPLES * len(FIELDS) * MEMBER_BYTES)
    length += length % MEMBER_BYTES == 0
    os.truncate(url, length)
    with pytest.raises(DataError) as caught:
        read_all(url)
    assert caught.value.url == url
    if indexed:
        assert isinstance(caught.value, StaleIndexError)
    else:
        assert "cut short" in str(caught.value)
        assert caught.value.offset == length // MEMBER_BYTES * MEMBER_BYTES
    assert_found_by_verify(url, near=length)


def test_a_shard_cut_between_two_members(tmp_path, seed, rng):
    url = shard_at(tmp_path, index=seed % 2 == 0)
    num_members = rng.randrange(1, NUM_SAMPLES * len(FIELDS))
    os.truncate(url, num_members * MEMBER_BYTES)
    problems = verify_shard(url).problems
    if seed % 2 == 0:
        with pytest.raises(StaleIndexError):
            read_all(url)
    elif num_members % len(FIELDS) and num_members > len(FIELDS):
        # A part of a sample is never handed out.
        for accept in (False, True):
            with pytest.raises(DataError, match="cut between two members"):
                read_all(url, accept_unfinished=accept)
    else:
        # Whole samples and no end: it could be all there ever was.
        with pytest.raises(DataError, match="no end") as caught:
            read_all(url)
        assert (caught.value.url, caught.value.offset) == (url, num_members * MEMBER_BYTES)
        assert len(read_all(url, accept_unfinished=True)[0]) == -(-num_members // len(FIELDS))
        problems = verify_shard(url).problems
        assert "no end" in problems[0].message
        assert verify_shard(url, accept_unfinished=True).problems == []
    assert problems


def test_a_shard_without_end_is_refused_unless_that_is_accepted(tmp_path, caplog):
    urls = make_shards(tmp_path, [3, 3])
    os.truncate(urls[1], 6 * MEMBER_BYTES)
    refusal = "no end.*if the 2 samples that it holds are all.*accept_unfinished=True"
    for has_index in (False, True):
        with pytest.raises(DataError, match=refusal) as caught:
            sw.tar(urls)[0]
        assert caught.value.url == urls[1]
        results = build_indexes(urls, jobs=1)
        assert [result.status for result in results] == ["fresh", "failed"]
        assert "no end" in str(results[1].error)
        assert Path(index_path(urls[1])).exists() == has_index
        build_indexes(urls, jobs=1, accept_unfinished=True)
    data = pickle.loads(pickle.dumps(sw.tar(urls, accept_unfinished=True)))
    assert [sample["__key__"] for sample in data] == [sample_key(g) for g in range(5)]
    assert f"1 of 2 shards have no end (two blocks of zeros), such as {urls[1]}" in caplog.text


@pytest.mark.parametrize("what", ["read", "read one"])
@pytest.mark.parametrize("is_looked_at", [True, False])
def test_a_shard_cut_while_it_is_in_use(tmp_path, monkeypatch, rng, what, is_looked_at):
    monkeypatch.setattr(local, "LOOK_EVERY_NS", 0 if is_looked_at else 10**18)
    url = shard_at(tmp_path, index=True)
    source = TarSource(url)
    source.read(np.array([0]))
    length = rng.randrange(512, NUM_SAMPLES * len(FIELDS) * MEMBER_BYTES - MEMBER_BYTES)
    os.truncate(url, length)
    # The first sample that is not whole any more, and its first field that is not.
    places = [
        (i * MEMBER_BYTES + 512, i // len(FIELDS), FIELDS[i % len(FIELDS)])
        for i in range(NUM_SAMPLES * len(FIELDS))
    ]
    at, sample, field = next(p for p in places if p[0] + len(payload(p[1], p[2])) > length)
    with pytest.raises(DataError, match="can't be read whole") as caught:
        source.read(np.arange(NUM_SAMPLES) if what == "read" else np.array([sample]))
    error = caught.value
    found = (error.url, error.key, error.field, error.offset, error.index)
    if is_looked_at:
        # The first that is read, which may be another one, too.
        sample, field = (0 if what == "read" else sample), FIELDS[0]
        at = (sample * len(FIELDS)) * MEMBER_BYTES + 512
    assert isinstance(error, StaleIndexError)
    assert found == (url, sample_key(sample), field, at, sample)


def test_zeros_in_the_middle(tmp_path, seed, rng):
    url = shard_at(tmp_path, index=seed % 2 == 0)
    num_members = NUM_SAMPLES * len(FIELDS)
    first = rng.randrange(num_members - 1)
    last = rng.randrange(first + 1, num_members)
    begin, end = first * MEMBER_BYTES, last * MEMBER_BYTES

    def change(data: bytearray) -> None:
        data[begin:end] = bytes(end - begin)

    damage(url, change)
    with pytest.raises(DataError, match=f"data behind them at byte {end}") as caught:
        build_index(url)
    assert (caught.value.url, caught.value.offset) == (url, begin)
    assert_found_by_verify(url, near=begin)


def test_garbage_behind_the_end(tmp_path, rng):
    url = shard_at(tmp_path)
    size = os.stat(url).st_size
    with open(url, "ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 3000)))
    with pytest.raises(DataError, match="data behind them") as caught:
        build_index(url)
    assert caught.value.offset == NUM_SAMPLES * len(FIELDS) * MEMBER_BYTES
    assert verify_shard(url).problems[0].message.count(f"at byte {size}")


def test_a_shard_replaced_after_indexing(tmp_path, rng):
    url = shard_at(tmp_path, index=True)
    stat = os.stat(url)
    start = rng.randrange(1, 9)
    other = make_shards(tmp_path / "other", [NUM_SAMPLES - rng.randrange(2)], start=start)
    os.replace(other[0], url)
    with pytest.raises(StaleIndexError, match=f"`shardwise index {url}`") as caught:
        read_all(url)
    assert caught.value.url == url
    for version in (stat, os.stat(url)):
        changed = datetime.fromtimestamp(version.st_mtime_ns // 10**9, UTC)
        assert f"{version.st_size:,} bytes, changed {changed:%Y-%m-%d %H:%M:%S}" in str(
            caught.value
        )
    assert any("has changed since it was indexed" in p.message for p in verify_shard(url).problems)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_missing_shard(tmp_path, indexed):
    url = shard_at(tmp_path, index=indexed)
    os.unlink(url)
    with pytest.raises(MissingShardError) as caught:
        read_all(url)
    assert caught.value.url == url
    assert [problem.url for problem in verify_shard(url).problems] == [url]


def test_a_shard_that_lies_about_a_size_is_cut_short(tmp_path):
    for size in (513, 1 << 33, 1 << 61):
        field = size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
        path = tmp_path / "x.tar"
        path.write_bytes(
            member(b"a.jpg", b"1") + header(b"dir/b.seg.png", field) + bytes(512) + END
        )
        if size == 513:
            path.write_bytes(path.read_bytes()[:-1024])
        with pytest.raises(DataError, match=r"cut short: the member 'dir/b\.seg\.png'") as caught:
            build_index(str(path))
        error = caught.value
        assert (error.key, error.field, error.offset) == ("dir/b", "seg.png", 1024)


def test_an_extended_header_without_member_is_cut_short(tmp_path):
    path = tmp_path / "x.tar"
    long_name = member(b"././@LongLink", b"n" * 200 + b".jpg\0", kind=b"L")
    for data in (long_name, long_name + END, header(b"x", 5000, kind=b"x")):
        path.write_bytes(member(b"a.jpg", b"1") + data)
        with pytest.raises(DataError, match="cut short") as caught:
            build_index(str(path))
        assert caught.value.offset in (1024, 2048)
