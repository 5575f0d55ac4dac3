"""Headers of remote shards are guessed ahead: the same members as of a local one, in few rounds."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.extensions.remote import header_prefetch as ahead
from shardwise.sources.tar.scan.members import scan_members
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import LocalFile
from tests.support.far_file import FarFile
from tests.support.raw_tars import header
from tests.support.tars import tar_bytes


def samples(num: int, num_bytes: int, *, spread: float = 0.5, fields=("cls", "jpg")):
    """Samples of one large payload, and small ones beside it."""
    draw = random.Random(num)
    for i in range(num):
        for field in fields:
            size = int(num_bytes * draw.uniform(1 - spread, 1 + spread))
            yield f"{i:06d}.{field}", bytes(size) if field == "jpg" else b"7" * 9


def members_of(file, num_bytes: int) -> list[tuple[bytes, int, int]]:
    scan = Scan(file, num_bytes, url="x.tar")
    found = []
    for members in scan_members(scan, Counter()):
        found += [
            (members.name(row), int(members.offsets[row]), int(members.sizes[row]))
            for row in range(len(members))
        ]
    assert scan.has_end
    return found


def agree(data: bytes, tmp_path) -> FarFile:
    """Scan a shard as a local and as a remote one; both must find the same."""
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    far = FarFile(data)
    assert members_of(far, len(data)) == members_of(LocalFile(path), len(data))
    return far


@pytest.mark.parametrize(
    ("fields", "share"),
    # Three headers and two small payloads alone are 4.8 % of it.
    [
        (("jpg",), 0.03),
        (("cls", "jpg"), 0.045),
        (("jpg", "json"), 0.045),
        (("a", "b", "jpg"), 0.06),
    ],
)
def test_little_is_read_of_samples_of_50_kb_and_many_places_are_followed_at_once(
    fields, share, tmp_path
):
    data = tar_bytes(samples(1200, 50_000, fields=fields))
    far = agree(data, tmp_path)
    assert far.num_bytes < share * len(data)
    # 1,200 headers one after the other would take as many.
    assert far.num_rounds < 300
    assert far.num_requests < 1400


def test_large_samples_have_lanes_that_are_larger(tmp_path):
    data = tar_bytes(samples(40, 1_000_000))
    far = agree(data, tmp_path)
    assert far.num_bytes < 0.01 * len(data)
    assert far.num_rounds < 80


def test_small_samples_are_read_whole_in_few_rounds(tmp_path):
    data = tar_bytes(samples(5000, 3000))
    far = agree(data, tmp_path)
    assert far.num_bytes < 1.2 * len(data)
    assert far.num_rounds < 12


def test_a_shard_may_change_its_ways(tmp_path):
    parts = [*samples(30, 100_000), *samples(3000, 500), *samples(100, 60_000)]
    names = [(f"{i // 2:06d}.{name[7:]}", data) for i, (name, data) in enumerate(parts)]
    far = agree(tar_bytes(names), tmp_path)
    assert far.num_rounds < 400


def test_tars_within_a_tar_do_not_fool_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_MIN_LANE_BYTES", 256 << 10)
    inner = tar_bytes(samples(20, 5000))
    data = tar_bytes([(f"{i:04d}.tar", inner) for i in range(80)])
    far = agree(data, tmp_path)
    # Each lane begins within an inner tar: what was guessed of it is for nothing, and not much.
    assert far.num_bytes < 0.5 * len(data)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.integers(0, 3000), st.integers(15_000, 90_000)),
            st.sampled_from(["short", "l" * 120, "d" * 200]),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from(["gnu", "pax"]),
    st.sampled_from([8 << 10, 64 << 10, 256 << 10]),
)
def test_any_shard_gives_the_members_that_a_local_one_gives(tmp_path_factory, parts, form, lane):
    members = []
    for number, (repeat, size, name) in enumerate(parts):
        fill = header(b"fake.jpg", 512) if repeat == 3 else bytes([number % 7])
        for copy in range(repeat + 1):
            data = (fill * (size // len(fill) + 1))[:size]
            members.append((f"{name}{number}x{copy}.jpg", data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "_MIN_LANE_BYTES", lane)
        agree(tar_bytes(members, format=form), tmp_path_factory.mktemp("shard"))


def test_what_is_not_a_tar_is_refused_after_one_request():
    far = FarFile(np.random.default_rng(0).bytes(10 << 20))
    with pytest.raises(DataError, match="not a tar"):
        members_of(far, 10 << 20)
    assert far.num_requests < 4
