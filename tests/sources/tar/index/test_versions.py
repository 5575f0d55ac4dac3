"""Older versions of a manifest file open by number or fingerprint."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from tests.support.tars import make_shards, sample_key


def merge(path: Path, shards: list[str]) -> str:
    build_indexes(shards)
    return merge_indexes(str(path), shards, store=IndexStore()).fingerprint


def test_each_merge_of_other_shards_is_a_version(tmp_path: Path) -> None:
    shards, path = make_shards(tmp_path, [3, 4, 2]), tmp_path / "train.swm"
    fingerprints = [merge(path, shards[:count]) for count in (1, 2, 2, 3)]
    one, two, _, three = fingerprints
    assert sorted(each.name for each in tmp_path.glob("*.swm*")) == [
        "train.swm", "train.swm.1", "train.swm.2",
    ]  # fmt: skip
    for version, fingerprint, count in (
        (1, one, 3), (2, two, 7), (3, three, 9), (one, one, 3), (three, three, 9), (None, three, 9),
    ):  # fmt: skip
        data = sw.tar(path, version=version)
        assert (data.fingerprint, len(data)) == (fingerprint, count)
        again = pickle.loads(pickle.dumps(data))
        assert again[count - 1]["__key__"] == sample_key(count - 1)
    with pytest.raises(ValueError, match=r"version=4: .*has 3 versions, number 1 to 3, the newest"):
        sw.tar(path, version=4)
    for number in (True, 1.0):
        with pytest.raises(TypeError, match="version must be a whole number"):
            sw.tar(path, version=number)
    with pytest.raises(ValueError, match=r"version='abc': .*has 3 versions"):
        sw.tar(path, version="abc")
    with pytest.raises(ValueError, match=r"version=1 is one of a manifest file \(.swm\)"):
        sw.tar(shards, version=1)


def test_a_version_keeps_its_number(tmp_path: Path) -> None:
    shards, path = make_shards(tmp_path, [3, 4]), tmp_path / "train.swm"
    merge(path, shards[:1])
    data = pickle.dumps(sw.tar(path, version=1))
    merge(path, shards)
    assert len(pickle.loads(data)) == 3
    # A version comes back as another one: the last of its fingerprint is meant.
    again = merge(path, shards[:1])
    assert len(sw.tar(path, version=again)) == 3
    assert sorted(each.name for each in tmp_path.glob("*.swm.*")) == ["train.swm.1", "train.swm.2"]


def test_a_merge_that_was_killed_before_its_end_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardwise.sources.tar.index import merge as module

    shards, path = make_shards(tmp_path, [3, 4]), tmp_path / "train.swm"
    merge(path, shards[:1])
    write = module.write_whole

    def fail(url: str, *args: object, **options: object) -> None:
        if url.endswith(".swm"):
            raise KeyboardInterrupt
        write(url, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_whole", fail)
        merge(path, shards)
    assert len(sw.tar(path)) == 3
    merge(path, shards)
    assert [len(sw.tar(path, version=number)) for number in (1, 2)] == [3, 7]
