"""Datasets opened by a manifest file: the same samples, and no shard that is not the listed one."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.manifest_file import decode
from shardwise.sources.tar.index.merge import merge_indexes
from tests.support.tars import make_shards, write_tar

SIZES = [3, 0, 5, 2]


@pytest.fixture
def listed(tmp_path):
    """A manifest of four shards, beside their directory."""
    return merged(tmp_path / "data", "train.swm", SIZES)


def merged(place: Path, name: str, sizes: list[int]) -> str:
    paths = make_shards(place / name.removesuffix(".swm"), sizes)
    assert len(sw.tar(paths)) == sum(sizes)
    merge_indexes(str(place / name), paths, store=IndexStore())
    return str(place / name)


def shard(listed: str, number: int) -> Path:
    return Path(sw.tar(listed).manifest.shards[number].url)


def epoch(urls, **options) -> list[int]:
    """The samples of an epoch; the rest of the dataset is compared by others."""
    loader = sw.DataLoader(
        sw.tar(urls), batch_size=2, remainder="uneven", rank=0, world_size=1, output="numpy",
        **options,
    )  # fmt: skip
    with loader:
        return [index for batch in loader for index in batch["__index__"].tolist()]


def test_it_is_the_dataset_of_its_shards(listed):
    data, shards = sw.tar(listed), sw.tar(str(Path(listed).with_suffix("")))
    assert data.fingerprint == shards.fingerprint
    assert data.fields == shards.fields
    assert data.manifest.shards == shards.manifest.shards
    assert list(data) == list(shards)
    state = sw.DataLoader(shards, batch_size=2, rank=0, world_size=1).state_dict()
    sw.DataLoader(data, batch_size=2, rank=0, world_size=1).load_state_dict(state)


def test_opening_looks_at_no_shard(listed):
    shutil.rmtree(Path(listed).with_suffix(""))
    data = sw.tar(listed)
    assert (len(data), len(data.manifest.shards)) == (10, 4)
    assert len(data.fingerprint) == 16


def test_a_dataset_that_is_copied_opens(listed, tmp_path):
    whole = list(sw.tar(listed))
    copy = tmp_path / "elsewhere"
    shutil.copytree(Path(listed).parent, copy)
    shutil.rmtree(Path(listed).parent)
    # Other times, and no index: both are made anew.
    for path in copy.rglob("*.swi"):
        path.unlink()
    assert list(sw.tar(copy / "train.swm")) == whole
    assert len(list(copy.rglob("*.swi"))) == 3


def test_shards_may_lie_elsewhere(tmp_path):
    paths = make_shards(tmp_path / "far", [2, 3])
    sw.tar(paths).fingerprint
    manifest = tmp_path / "here" / "sub" / "a.swm"
    merge_indexes(str(manifest), paths, store=IndexStore())
    assert list(sw.tar(manifest)) == list(sw.tar(paths))


def test_a_missing_shard_is_an_error_of_the_worker_and_no_short_epoch(listed):
    shard(listed, 2).unlink()
    with pytest.raises(MissingShardError, match=r"train.swm' lists this shard, and it is not"):
        epoch(listed, num_workers=2)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_missing_shard_that_the_user_skips_is_counted(listed, has_manifest):
    data = sw.tar(listed if has_manifest else Path(listed).with_suffix(""))
    size = data.shard_sizes[2]
    shard(listed, 2).unlink()
    with sw.DataLoader(data, batch_size=5, on_error="skip", output="numpy") as it:
        rows = sum(len(batch["__key__"]) for batch in it)
        assert (rows, it.stats()["skipped"]) == (10 - size, size)


def test_a_shard_of_the_same_size_and_time_with_other_keys_is_not_the_listed_one(listed):
    path = shard(listed, 2)
    stat = path.stat()
    with tarfile.open(path) as tar:
        members = [(info.name.replace("s0", "s1"), tar.extractfile(info).read()) for info in tar]
    write_tar(path, members)
    assert path.stat().st_size == stat.st_size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    # An index that fits it is made.
    Path(f"{path}.swi").unlink()
    with pytest.raises(StaleIndexError, match=r"not the one that the manifest .*train.swm") as one:
        epoch(listed)
    assert one.value.url == str(path)
    # At open, where that is asked for.
    with pytest.raises(StaleIndexError):
        sw.tar(listed, check="all").manifest


def test_check_all_passes_a_whole_dataset_and_travels(listed):
    data = sw.tar(listed, check="all")
    assert len(data) == 10
    assert list(pickle.loads(pickle.dumps(data))) == list(data)
    with pytest.raises(ValueError, match="check='some': use one of 'first use', 'all'"):
        sw.tar(listed, check="some")


def test_digests_may_be_added_and_indexes_refreshed_later(listed):
    folder = Path(listed).with_suffix("")
    for path in folder.glob("*.tar"):
        os.utime(path, (1, 1))
    from shardwise.sources.tar.index.build import build_indexes

    build_indexes(str(folder), digests=True, force=True)
    assert epoch(listed) == list(range(10))


def test_a_pickled_dataset_is_the_name_of_its_manifest(listed):
    loader = sw.DataLoader(sw.tar(listed), batch_size=2, shuffle="window", rank=0, world_size=1)
    whole = [sample["__key__"] for sample in loader.dataset]
    assert str(shard(listed, 0)) not in str(pickle.dumps(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert [sample["__key__"] for sample in copy.dataset] == whole
    assert copy.state_dict() == loader.state_dict()
    steps = range(len(loader))
    for step in steps:
        assert np.array_equal(copy.plan.indices(0, step, 0), loader.plan.indices(0, step, 0))


def test_a_manifest_that_changed_before_a_worker_read_it_is_an_error(listed, tmp_path):
    travelling = pickle.dumps(sw.tar(listed))
    other = merged(tmp_path / "other", "train.swm", [1, 2])
    os.replace(other, listed)
    copy = pickle.loads(travelling)
    with pytest.raises(StaleIndexError, match="the manifest was replaced while it was in use"):
        copy[0]


def test_manifests_and_shards_may_be_joined(listed, tmp_path):
    other = merged(tmp_path / "other", "more.swm", [4])
    (plain,) = make_shards(tmp_path / "plain", [2])
    joined = sw.tar([listed, plain, other])
    parts = [sw.tar(listed), sw.tar(plain), sw.tar(other)]
    assert list(joined) == [sample for part in parts for sample in part]
    shards = [url for part in parts for url in part.source.urls]
    assert joined.fingerprint == sw.tar(shards).fingerprint
    copy = pickle.loads(pickle.dumps(joined))
    assert list(copy) == list(joined)
    assert epoch([listed, plain, other], num_workers=1) == list(range(16))


def test_patterns_of_manifests_are_joined(listed, tmp_path, monkeypatch):
    other = merged(tmp_path / "other", "train.swm", [4])
    whole = list(sw.tar([listed, other]))
    for pattern in ("{data,other}/train.swm", "*/train.swm", "*/*.swm"):
        assert list(sw.tar(f"{tmp_path}/{pattern}")) == whole
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(sw.tar("~/data/train.swm")) == whole[:10]
    with pytest.raises(MissingShardError, match="no file matches the pattern"):
        sw.tar(f"{tmp_path}/*/none.swm")


def test_what_does_not_go_together_is_refused(listed, tmp_path):
    with pytest.raises(ValueError, match="is named twice"):
        sw.tar([listed, shard(listed, 0)])
    with pytest.raises(ValueError, match="is named twice"):
        sw.tar([listed, listed])
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"mixes shard lists \(.json\) with manifests"):
        sw.tar([listed, tmp_path / "a.json"])
    with pytest.raises(MissingShardError):
        sw.tar(tmp_path / "none.swm")
    (tmp_path / "empty.swm").write_bytes(b"")
    with pytest.raises(DataError, match="can't be used"):
        sw.tar(tmp_path / "empty.swm")


def test_shards_without_an_end_are_accepted_by_the_reader_alone(tmp_path):
    path = tmp_path / "a.tar"
    with sw.TarWriter(path) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    path.write_bytes(path.read_bytes()[:1024])
    Path(f"{path}.swi").unlink()
    store = IndexStore(accept_unfinished=True)
    assert len(sw.tar(path, accept_unfinished=True)) == 1
    manifest = str(tmp_path / "a.swm")
    merge_indexes(manifest, [str(path)], store=store)
    with pytest.raises(DataError, match="1 of 1 shards that the manifest lists are not whole"):
        sw.tar(manifest)
    assert len(list(sw.tar(manifest, accept_unfinished=True))) == 1


def test_a_shard_without_an_index_is_not_merged(tmp_path):
    (path,) = make_shards(tmp_path, [3])
    with pytest.raises(DataError, match="no index that fits: make it with `shardwise index"):
        merge_indexes(str(tmp_path / "a.swm"), [path], store=IndexStore())
    assert not (tmp_path / "a.swm").exists()


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["https://h/a.tar?sig=1", "https://h/a.tar?sig=2"], "two shards are called"),
        (["https://h/get?file=a"], "may name the shard, or be a signature"),
        (["https://me:secret@h/a.tar"], "has a user or a password in it"),
    ],
)
def test_no_secret_of_a_url_is_kept(listed, tmp_path, urls, message, monkeypatch):
    path = str(shard(listed, 0))
    index, stat = IndexStore().valid(path, IndexStore().stat(path)), IndexStore().stat(path)
    monkeypatch.setattr(IndexStore, "stat", lambda *_: stat)
    monkeypatch.setattr(IndexStore, "valid", lambda *_: index)
    with pytest.raises(ValueError, match=message) as caught:
        merge_indexes(str(tmp_path / "a.swm"), urls, store=IndexStore())
    assert "sig=1" not in str(caught.value)
    assert "secret" not in str(caught.value)
    merge_indexes(str(tmp_path / "a.swm"), ["https://h/a.tar?sig=1"], store=IndexStore())
    assert b"sig=" not in (tmp_path / "a.swm").read_bytes()
    with pytest.raises(ValueError, match="a file of this machine"):
        merge_indexes("s3://bucket/a.swm", [path], store=IndexStore())


def test_a_manifest_cannot_name_files_outside_of_its_place(listed):
    data = Path(listed).read_bytes()
    from shardwise.sources.tar.index import listed_shards as module

    names = decode(data, path=listed).names
    for manifest, wrong in (
        ("https://h/a.swm", "/etc/passwd"),
        (listed, "../x"),
        (listed, "pipe:ls"),
    ):
        assert len(names) == 4
        with pytest.raises(DataError):
            list(module._urls_of(type(names)([[wrong]]), manifest))
