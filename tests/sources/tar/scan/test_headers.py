"""Header fields: arrays of headers and single ones say the same."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.sources.tar.scan.headers import (
    checksums_hold,
    has_magic,
    parse_number,
    parse_pax,
    parse_sizes,
    read_name,
    round_up,
    stored_names,
)
from tests.support.raw_tars import header, pax_records


def as_blocks(*headers: bytes):
    return np.frombuffer(b"".join(headers), np.uint8).reshape(-1, 512)


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (b"00000001750\0", 1000),
        (b"      1750 \0", 1000),
        (b"1750\0garbage", 1000),
        (b"777777777777", 8**12 - 1),
        (b"\0" * 12, 0),
        (b"            ", 0),
        (b"\x80" + (9 << 30).to_bytes(11, "big"), 9 << 30),
        (b"\x80" + bytes(11), 0),
        (b"\xff" * 12, None),
        (b"0000000175x\0", None),
        (b"00000000089\0", None),
        (b"-0000001750\0", None),
        (b"\x80" + (1 << 70).to_bytes(11, "big"), None),
    ],
)
def test_sizes_are_read_in_all_notations(field, number):
    assert parse_number(field) == number
    wanted = -1 if number is None else number
    assert parse_sizes(as_blocks(header(b"a.b", field), header(b"c.d", 5))).tolist() == [wanted, 5]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 8**11 - 1), min_size=1, max_size=20))
def test_octal_sizes_are_exact(sizes):
    assert parse_sizes(as_blocks(*[header(b"a.b", s) for s in sizes])).tolist() == sizes


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 511), st.integers(0, 7))
@example(byte=154, bit=0)
def test_a_flipped_bit_in_a_header_breaks_its_checksum(byte, bit):
    before = header("dätä/0001.jpg".encode(), 1234)
    block = bytearray(before)
    block[byte] ^= 1 << bit
    held = checksums_hold(as_blocks(bytes(block), header(b"other.jpg", 1)))
    # The checksum's own field may say the same number in another way.
    is_same = 148 <= byte < 156 and parse_number(block[148:156]) == parse_number(before[148:156])
    assert held.tolist() == [is_same, True]


def test_checksums_of_old_systems_hold():
    plain = header("ä.jpg".encode(), 1)
    signed = sum(byte - 256 * (byte > 127) for byte in plain[:148] + plain[156:]) + 256
    old = plain[:148] + b"%6o\0 " % signed + plain[156:]
    seven_digits = plain[:148] + b"%07o\0" % (sum(plain[:148] + plain[156:]) + 256) + plain[156:]
    assert checksums_hold(as_blocks(old, seven_digits, bytes(512))).tolist() == [True, True, False]


def test_the_magic_tells_headers_from_other_blocks():
    blocks = as_blocks(header(b"a", 0), bytes(512), header(b"a", 0, magic=b"ustar  "), b"x" * 512)
    assert has_magic(blocks).tolist() == [True, False, True, False]


def test_names_are_put_together_with_their_prefix():
    blocks = as_blocks(
        header(b"a.jpg", 0),
        header(b"n" * 100, 0),
        header(b"b.jpg", 0, prefix=b"some/dir"),
        header(b"c.jpg", 0, magic=b"ustar  ", prefix=b"14000000000"),
        header(b"d.jpg\0garbage", 0),
        header(b"", 0),
    )
    names, lengths, prefixed = stored_names(blocks)
    found = [names[i, :n].tobytes() for i, n in enumerate(lengths)]
    assert found == [b"a.jpg", b"n" * 100, b"b.jpg", b"c.jpg", b"d.jpg", b""]
    assert (names[4, 5:] == 0).all()
    assert prefixed.tolist() == [2]
    assert read_name(blocks[2].tobytes()) == b"some/dir/b.jpg"
    assert read_name(blocks[3].tobytes()) == b"c.jpg"


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text("abcxyz.", min_size=1), st.text(max_size=120), max_size=5))
def test_pax_records_are_read_as_tarfile_writes_them(records):
    payload = tarfile.TarInfo._create_pax_generic_header(records, b"x", "utf-8")[512:]
    wanted = {key.encode(): value.encode() for key, value in records.items()}
    assert parse_pax(payload) == wanted
    assert pax_records(**records) == payload.rstrip(b"\0") or any("\0" in v for v in wanted)


@pytest.mark.parametrize(
    "payload",
    [b"path=x\n", b"99 path=x\n", b"0 path=x\n", b"9 path=xy\n", b"7 path\n", b"5 =x\n", b"x" * 30],
)
def test_malformed_pax_records_are_refused(payload):
    with pytest.raises(ValueError, match="malformed record at byte 0"):
        parse_pax(payload)


@given(st.integers(0, 1 << 60))
def test_payloads_take_up_whole_blocks(num_bytes):
    assert 0 <= round_up(num_bytes) - num_bytes < 512
    assert round_up(num_bytes) % 512 == 0
