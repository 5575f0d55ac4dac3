"""wids and remote shards: read in place, or copied whole; never half of one, never another's."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest
import torch.utils.data

from shardwise import DataError, MissingShardError, StorageError
from shardwise.compat import wids
from shardwise.compat.wids.wids import CacheLocalname, DefaultLocalname, hash_localname
from shardwise.compat.wids.wids_dl import (
    ULockFile,
    download_and_open,
    download_file,
    fetch,
    recent_downloads,
)
from shardwise.compat.wids.wids_index import make_index
from tests.support.copies import fetch_counted, write_half_and_wait
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import nginx
from tests.support.tars import make_shards, sample_key

SIZES = {"train": (6, 7), "val": (5,)}


@pytest.fixture(scope="module")
def server(no_orphans, tmp_path_factory):
    """`train/part-000.tar` and `-001`, `val/part-000.tar`, and an index of all, over HTTP."""
    root = tmp_path_factory.mktemp("www")
    start, urls = 0, []
    for name, sizes in SIZES.items():
        urls += make_shards(root / name, sizes, start=start)
        start += sum(sizes)
    (root / "index.json").write_text(json.dumps(make_index(urls, directory=str(root))))
    for stray in root.rglob("*.swi"):
        stray.unlink()
    with nginx(root) as running:
        yield running


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing outside the test's directory is written."""
    monkeypatch.delenv("WIDS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def keys_of(dataset):
    return [dataset[i]["__key__"] for i in range(len(dataset))]


EVERYTHING = [sample_key(g) for g in range(18)]


def test_an_index_and_its_shards_are_read_over_http(server, tmp_path):
    dataset = wids.ShardListDataset(f"{server.url}/index.json", cache_dir=str(tmp_path / "cache"))
    assert keys_of(dataset) == EVERYTHING
    assert dataset[-1][".txt"] == sample_key(17)
    assert dataset[17]["__shard__"] == f"{server.url}/val/part-000.tar"


def test_shards_of_one_name_in_two_directories_are_not_taken_for_each_other(server, tmp_path):
    def shard(place, count):
        return {"url": f"{server.url}/{place}/part-000.tar", "nsamples": count}

    for options in (
        {"cache_dir": str(tmp_path / "cache")},
        {"localname": CacheLocalname(str(tmp_path / "copies"))},
    ):
        dataset = wids.ShardListDataset([shard("train", 6), shard("val", 5)], **options)
        assert keys_of(dataset) == EVERYTHING[:6] + EVERYTHING[13:]


def test_copies_are_made_where_localname_says_and_used_again(server, tmp_path):
    index = f"{server.url}/index.json"
    localname = CacheLocalname(str(tmp_path / "copies"))
    assert keys_of(wids.ShardListDataset(index, localname=localname)) == EVERYTHING
    copies = sorted(p.name for p in (tmp_path / "copies").glob("*.tar"))
    assert len(copies) == 3
    before = len(server.requests())
    again = wids.ShardListDataset(index, localname=localname)
    assert keys_of(again) == EVERYTHING
    # Nothing but the index was fetched.
    assert {seen["path"] for seen in server.requests()[before:]} == {"/index.json"}
    assert not list((tmp_path / "copies").glob(".*"))


@pytest.mark.parametrize("copies", [True, False])
def test_a_page_that_says_404_is_no_shard(server, tmp_path, copies):
    shards = [{"url": f"{server.url}/train/none.tar", "nsamples": 6}]
    target = tmp_path / "copies"
    localname = CacheLocalname(str(target)) if copies else None
    for _ in range(2):
        dataset = wids.ShardListDataset(shards, localname=localname)
        with pytest.raises(MissingShardError, match="none"):
            dataset[0]
    assert not list(target.glob("*.tar"))


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("wrong", [{"nsamples": 7}, {"filesize": 512}])
def test_a_shard_that_is_not_what_the_list_says_is_an_error(server, tmp_path, copies, wrong):
    url = f"{server.url}/train/part-000.tar"
    localname = CacheLocalname(str(tmp_path)) if copies else None
    dataset = wids.ShardListDataset([{"url": url, "nsamples": 6, **wrong}], localname=localname)
    with pytest.raises(DataError):
        dataset[0]


def test_a_missing_index_is_an_error(server):
    with pytest.raises(MissingShardError):
        wids.ShardListDataset(f"{server.url}/none.json")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_read_what_their_parent_has_read_before(server, tmp_path, method):
    dataset = wids.ShardListDataset(f"{server.url}/index.json", cache_dir=str(tmp_path / "cache"))
    assert dataset[0]["__key__"] == sample_key(0)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=keys_of_batch,
    )
    assert [key for batch in loader for key in batch] == EVERYTHING


def keys_of_batch(samples):
    return [sample["__key__"] for sample in samples]


# Copies


def test_names_of_copies_differ_where_urls_do(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "chosen"))
    urls = [
        "https://host/train/000.tar",
        "https://host/val/000.tar",
        "https://host/val/000.tar?v=2",
        "s3://bucket/val/000.tar",
        "https://host/" + "long" * 100 + ".tar",
        "https://host/..",
        "https://host/.hidden",
        "pipe:cat /etc/passwd | tee '/etc/x'",
    ]
    for localname in (CacheLocalname(str(tmp_path)), DefaultLocalname(), hash_localname()):
        names = [localname(url) for url in urls]
        assert len(set(names)) == len(urls)
        assert all(len(os.path.basename(name)) < 200 for name in names)
        assert {os.path.dirname(name) for name in names} <= {
            str(tmp_path),
            str(tmp_path / "chosen"),
        }
    assert names[0].startswith(str(tmp_path / "chosen" / "000-"))
    assert names[0].endswith(".tar")
    monkeypatch.delenv("WIDS_CACHE")
    assert DefaultLocalname()("a.tar").startswith(str(tmp_path / "home"))


def test_a_file_is_copied_and_opened(server, tmp_path):
    local = tmp_path / "new" / "copy.tar"
    recent_downloads.clear()
    with download_and_open(f"{server.url}/val/part-000.tar", local) as file:
        assert len(file.read()) == local.stat().st_size
    assert [entry[1] for entry in recent_downloads] == [str(local)]
    assert download_file(str(local), tmp_path / "again.tar") == str(tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == local.read_bytes()


def test_commands_are_not_run(tmp_path):
    ran = tmp_path / "ran"
    with pytest.raises(StorageError, match="commands are not run"):
        download_file(f"pipe:touch {ran}", tmp_path / "x")
    with pytest.raises(TypeError, match="give a function"):
        download_file("http://host/x", tmp_path / "x", {"http": f"touch {ran} {{url}} {{local}}"})
    # wids put the URL into a shell's command.
    with pytest.raises((StorageError, DataError)):
        download_file(f"file:///none'; touch {ran}; '", tmp_path / "x")
    assert not ran.exists()
    assert not (tmp_path / "x").exists()


def test_answers_that_are_cut_give_whole_copies_or_none(server, tmp_path):
    big = Path(server.log).parents[1] / "big.bin"
    big.write_bytes(random.Random(0).randbytes(3 << 20))
    with FaultProxy(server.url, seed=1, cut_share=0.5) as proxy:
        for number in range(4):
            copy = tmp_path / f"{number}.bin"
            try:
                download_file(f"{proxy.url}/big.bin", copy)
            except StorageError:
                assert not copy.exists()
            else:
                assert copy.read_bytes() == big.read_bytes()
        assert proxy.counts()["cut"] > 0


def half(remote, path):
    Path(path).write_bytes(b"half of it")
    raise ConnectionError("cut")


def test_a_download_that_fails_leaves_nothing_to_trust(tmp_path):
    target = tmp_path / "copy.tar"
    with pytest.raises(ConnectionError):
        fetch("own://x", target, handlers={"own": half})
    assert [p.name for p in tmp_path.iterdir()] == ["copy.tar.lock"]
    whole = {"own": lambda _, path: Path(path).write_bytes(b"all of it")}
    assert Path(fetch("own://x", target, handlers=whole)).read_bytes() == b"all of it"


def test_a_killed_download_is_not_trusted(tmp_path):
    target = tmp_path / "copy.tar"
    ready = multiprocessing.get_context("spawn").Event()
    child = multiprocessing.get_context("spawn").Process(
        target=write_half_and_wait, args=(str(target), ready)
    )
    child.start()
    assert ready.wait(60)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not target.exists()
    whole = {"own": lambda _, path: Path(path).write_bytes(b"all of it")}
    assert Path(fetch("own://x", target, handlers=whole)).read_bytes() == b"all of it"


def test_of_many_processes_one_copies(tmp_path):
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fetch_counted, args=(str(tmp_path),)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(list((tmp_path / "calls").iterdir())) == 1


def test_a_lock_has_one_holder_also_after_others_gave_it_back(tmp_path):
    # wids removed the file, so that the next two had locks on two files of one name.
    path = tmp_path / "lock"
    with ULockFile(path):
        first = path.stat().st_ino
    with ULockFile(path):
        assert path.stat().st_ino == first
