"""The manifest that a writer leaves with its shards."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes


def write(pattern: object, count: int = 7, **options: object) -> sw.TarWriter:
    with sw.TarWriter(pattern, max_samples=3, **options) as writer:
        for number in range(count):
            writer.write({"__key__": f"{number:04d}", "txt": "x" * number})
    return writer


@pytest.mark.parametrize(
    ("pattern", "manifest"),
    [
        ("out/train-{shard:06d}.tar", "out/train.swm"),
        ("out/{shard:03d}.tar", "out/manifest.swm"),
        ("out/%04d.tar", "out/manifest.swm"),
    ],
)
def test_it_lies_beside_the_shards(tmp_path, pattern, manifest):
    writer = write(tmp_path / pattern, manifest=True)
    assert writer.manifest == str(tmp_path / manifest)
    assert list(sw.tar(writer.manifest)) == list(sw.tar(writer.shards))
    assert sw.tar(writer.manifest).fingerprint == sw.tar(writer.shards).fingerprint


def test_it_is_the_one_that_merging_makes(tmp_path):
    writer = write(tmp_path / "a-{shard}.tar", manifest=tmp_path / "sub" / "b.swm")
    made = Path(writer.manifest).read_bytes()
    merge_indexes(writer.manifest, writer.shards, store=IndexStore())
    assert Path(writer.manifest).read_bytes() == made


def test_without_indexes_the_first_use_makes_them(tmp_path):
    writer = write(tmp_path / "a-{shard}.tar", manifest=True, index=False)
    assert not list(tmp_path.glob("*.swi"))
    assert len(list(sw.tar(writer.manifest))) == 7
    assert len(list(tmp_path.glob("*.swi"))) == 3


def test_an_exception_or_no_sample_leaves_none(tmp_path):
    with pytest.raises(RuntimeError), sw.TarWriter(tmp_path / "a.tar", manifest=True) as writer:
        writer.write({"__key__": "a", "txt": "x"})
        raise RuntimeError
    assert write(tmp_path / "b-{shard}.tar", 0, manifest=True).manifest is not None
    assert not list(tmp_path.glob("*.swm"))


def test_one_that_is_there_is_refused_like_a_shard(tmp_path):
    (tmp_path / "a.swm").write_bytes(b"")
    with pytest.raises(FileExistsError):
        write(tmp_path / "a-{shard}.tar", manifest=True)
    assert (
        len(sw.tar(write(tmp_path / "a-{shard}.tar", manifest=True, overwrite=True).manifest)) == 7
    )
    with pytest.raises(ValueError, match=r"must end in '.swm'"):
        write(tmp_path / "b-{shard}.tar", manifest="b.json")
