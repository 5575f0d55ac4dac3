"""The manifest: columns that look like shards, and fingerprints that stay what they were."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.sources.manifest import Manifest, Shard
from tests.support.tars import make_shards

SHARDS = st.lists(
    st.builds(
        Shard,
        st.sampled_from(["a/b.tar", "https://h/a.tar?sig=1", "s3://b/c/", "é.tar", "part-7.tar"]),
        st.integers(0, 2**40),
        st.integers(0, 2**50),
    ),
    max_size=12,
)


def fingerprint_as_ever(kind: str, shards: list[Shard]) -> str:
    """States hold it: what it is made of must not change."""
    digest = hashlib.sha256(f"shardwise manifest 1 {kind}\n".encode())
    for shard in shards:
        url = shard.url.partition("?")[0] if shard.url.startswith("http") else shard.url
        name = url.rstrip("/").rpartition("/")[2]
        digest.update(f"{name}\0{shard.num_samples}\0{shard.num_bytes}\n".encode())
    return digest.hexdigest()[:16]


@given(SHARDS, st.integers(1, 4))
def test_the_fingerprint_is_that_of_the_shards(shards, repeats):
    # Several blocks of objects, too.
    shards = shards * (1 if repeats < 4 else 1000)
    assert Manifest("tar", shards).fingerprint == fingerprint_as_ever("tar", shards)


def test_fingerprints_of_all_sources_stay(tmp_path):
    one = sw.tar(make_shards(tmp_path / "a", [3]))
    two = sw.tar(make_shards(tmp_path / "b", [2, 0]))
    assert one.fingerprint == fingerprint_as_ever("tar", list(one.manifest.shards))
    joined = sw.concat([one, two])
    parts = f"{one.fingerprint}\n{two.fingerprint}\n"
    digest = hashlib.sha256(f"shardwise concat 1\n{parts}".encode()).hexdigest()[:16]
    assert joined.fingerprint == digest
    assert list(joined.manifest.shards) == [*one.manifest.shards, *two.manifest.shards]
    assert joined.manifest.num_samples == 5


@given(SHARDS)
def test_the_shards_are_a_sequence_of_objects(shards):
    manifest = Manifest("tar", shards)
    view = manifest.shards
    assert view == shards
    assert list(view) == [view[number] for number in range(len(view))] == shards
    assert list(view[1:3]) == shards[1:3]
    assert manifest.num_bytes == sum(shard.num_bytes for shard in shards)
    copy = pickle.loads(pickle.dumps(manifest))
    assert copy.shards == shards
    assert (copy.fingerprint, copy.num_samples) == (manifest.fingerprint, manifest.num_samples)
    assert copy.ends.tolist() == manifest.ends.tolist()
    with pytest.raises(IndexError):
        view[len(shards)]


def test_a_hundred_thousand_shards_pickle_small():
    count = 100_000
    manifest = Manifest.of_columns(
        "tar",
        [f"s3://bucket/part-{number:06d}.tar" for number in range(count)],
        np.random.default_rng(0).integers(9_000, 11_000, count),
        np.random.default_rng(1).integers(4 * 10**8, 6 * 10**8, count),
    )
    assert len(pickle.dumps(manifest)) < 700_000
