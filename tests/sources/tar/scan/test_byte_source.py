"""A forward stream, and a remote file, give the members and the errors of a local file."""

from __future__ import annotations

import io
import random
from collections import Counter

import pytest

from shardwise.base.errors import DataError
from shardwise.sources.tar.scan.byte_source import StreamBytes
from shardwise.sources.tar.scan.members import scan_members
from shardwise.sources.tar.scan.walk import HeaderScan, Scan
from shardwise.storage import LocalFile
from tests.support.far_file import FarFile
from tests.support.raw_tars import END, member
from tests.support.tars import FORMATS, tar_bytes


class Trickle(io.BytesIO):
    """A stream whose reads return less than was asked for, and which can't seek."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._random = random.Random(len(data))

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size > 0
        return super().read(self._random.randint(1, size))

    def seek(self, *_: int) -> int:
        raise OSError("a stream")


def read_stream(data: bytes) -> list[tuple[bytes, bytes]]:
    """Names and payloads, in order."""
    source = StreamBytes(Trickle(data))
    scan = HeaderScan(source, url="x.tar")
    found = []
    for members in scan_members(scan, Counter()):
        payloads = source.read_many(members.offsets.tolist(), members.sizes.tolist())
        found += zip(map(members.name, range(len(members))), payloads, strict=True)
        source.release(scan.position)
    assert scan.has_end
    return found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sizes", [(0, 10, 3000), (700, 2_500_000, 40_000)])
def test_a_stream_has_the_members_that_the_standard_library_reads(form, sizes):
    written = [
        (f"{'d' * 70}/{'e' * (90 * (i % 2))}{i}.bin", bytes([i]) * sizes[i % 3]) for i in range(40)
    ]
    data = tar_bytes(written, format=form)
    assert read_stream(data) == [(name.encode(), payload) for name, payload in written]


def test_released_bytes_are_let_go():
    source = StreamBytes(io.BytesIO(bytes(10_000_000)))
    for offset in range(0, 10_000_000, 100_000):
        assert source.available(offset, 100_000) == 100_000
        source.release(offset + 100_000)
        assert len(source.read(offset + 100_000, 1)) <= 1
    assert source.available(10_000_000, 1) == 0


def damaged(damage: str, whole: list[bytes]) -> bytes:
    """Members of which only the first two thirds are sound."""
    num_sound = len(whole) * 2 // 3
    before, behind = b"".join(whole[:num_sound]), b"".join(whole[num_sound:]) + END
    match damage:
        case "checksum":
            return before + behind[:3] + bytes([behind[3] ^ 1]) + behind[4:]
        case "cut payload":
            return before + behind[:1512]
        case "cut header":
            return before + behind[:100]
        case "garbage":
            return before + random.Random(0).randbytes(512) + behind[512:]
    return before + END + behind


@pytest.mark.parametrize("num_bytes", [900, 40_000])
@pytest.mark.parametrize("damage", ["checksum", "cut payload", "cut header", "garbage", "two tars"])
@pytest.mark.extension
def test_damage_is_the_same_error_behind_the_same_members_wherever_the_bytes_are(
    tmp_path, monkeypatch, damage, num_bytes
):
    monkeypatch.setattr("shardwise.extensions.remote.header_prefetch._MIN_LANE_BYTES", 1 << 16)
    names = [b"%02d.jpg" % i for i in range(30)]
    data = damaged(damage, [member(name, bytes(num_bytes + i)) for i, name in enumerate(names)])
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    errors = []
    for scan in (
        Scan(LocalFile(path), len(data), url="x.tar"),
        Scan(FarFile(data), len(data), url="x.tar"),
        HeaderScan(StreamBytes(Trickle(data)), url="x.tar"),
    ):
        seen = []
        with pytest.raises(DataError) as caught:
            for members in scan_members(scan, Counter()):
                seen += map(members.name, range(len(members)))
        assert seen == names[:20]
        errors.append((caught.value.reason, caught.value.key, caught.value.offset))
    assert errors[0] == errors[1] == errors[2]
