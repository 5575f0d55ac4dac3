"""Names of shards as patterns: the same names, in less room."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.sources.shard_names import NumberedNames, ShardNames

RUNS = st.builds(
    lambda prefix, suffix, width, first, count: [
        f"{prefix}{number:0{width}d}{suffix}" for number in range(first, first + count)
    ],
    st.sampled_from(["", "a-", "a0", "s3://b/9/", "x1-"]),
    st.sampled_from(["", ".tar", "-v2.tar", "7"]),
    st.integers(1, 6),
    st.sampled_from([0, 1, 8, 95, 998, 10**17]),
    st.integers(1, 40),
)


@given(st.lists(st.one_of(RUNS, st.lists(st.text(max_size=4), max_size=4)), max_size=4))
def test_they_are_the_same_names(runs):
    names = [name for run in runs for name in run]
    found = ShardNames.of(names)
    assert list(found) == names
    assert [found[number] for number in range(-len(names), len(names))] == names + names
    assert found[1:5] == names[1:5]
    assert list(pickle.loads(pickle.dumps(found))) == names
    joined = ShardNames.joined([names, found, names])
    assert list(joined) == names * 3
    with pytest.raises(IndexError):
        found[len(names)]


def test_a_million_numbered_names_are_one_pattern():
    names = ShardNames.of([f"s3://bucket/part-{number:05d}.tar" for number in range(100_000)])
    assert names.parts == (NumberedNames("s3://bucket/part-", ".tar", 0, 5, 100_000),)
    assert len(pickle.dumps(names)) < 200
    assert list(names.examples()) == ["s3://bucket/part-00000.tar", "s3://bucket/part-99999.tar"]


def test_a_number_in_the_middle_is_found_too():
    names = [f"a/{number:03d}-of-100.tar" for number in range(100)]
    assert ShardNames.of(["x", *names]).parts == (
        ["x"],
        NumberedNames("a/", "-of-100.tar", 0, 3, 100),
    )
