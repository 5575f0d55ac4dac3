"""Headers are those of the standard library's tarfile."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.sources.tar.write.partial_shard import MAX_NAME, MAX_SIZE, header, headers


def by_tarfile(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(name=NAMES, size=st.integers(0, 1 << 40))
@example(name="x" * 100, size=8**11 - 1)
@example(name="x" * 101, size=8**11)
@example(name="\u00fc" * 50, size=0)
@example(name="\u00fc" * 51, size=0)
@example(name="d" * 90 + "/" + "x" * 90, size=1)
@example(name="x" * 300, size=1)
def test_a_header_has_the_bytes_of_tarfile(name, size):
    assert header(name, size) == by_tarfile(name, size)


@given(members=st.lists(st.tuples(NAMES, st.integers(0, MAX_SIZE)), min_size=1))
@example(members=[("x" * 100, MAX_SIZE), ("y", 0)])
def test_many_headers_at_once_are_those_that_are_made_one_by_one(members):
    members = [(name, size) for name, size in members if len(name.encode()) <= MAX_NAME] or [
        ("x", 1)
    ]
    names, sizes = zip(*members, strict=True)
    packed = np.array([name.encode() for name in names], f"S{MAX_NAME}").view(np.uint8)
    made = headers(packed.reshape(-1, MAX_NAME), np.array(sizes, np.int64))
    assert [row.tobytes() for row in made] == [header(*each) for each in members]


def test_a_name_that_is_no_utf_8_is_refused():
    with pytest.raises(UnicodeEncodeError):
        header("\udc80.bin", 1)
