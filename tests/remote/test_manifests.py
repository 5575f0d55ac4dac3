"""Manifest files in stores: one request opens a dataset, and each shard is checked where it is."""

from __future__ import annotations

import logging
import pickle
import shutil

import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.extensions.remote.cache.fetch import CacheAhead
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from shardwise.storage import StorageOptions
from tests.support.remote_shards import (
    check_epoch,
    loader,
    numbered_tar,
    put_indexed_shards,
    replace_object,
)
from tests.support.servers import S3Server, nginx

SIZES = [5, 6, 4]


def merged(s3: S3Server, prefix: str, sizes: list[int] = SIZES) -> str:
    """Shards with their indexes, and a manifest beside them."""
    urls = put_indexed_shards(s3, prefix, sizes)
    options = StorageOptions(**s3.unhedged)
    url = s3.url(f"{prefix}/train.swm")
    merge_indexes(url, urls, store=IndexStore(options=options))
    return url


@pytest.mark.parametrize("executor", [{"executor": "inline"}, {"num_workers": 1}], ids=str)
def test_shards_that_only_a_manifest_knows_are_fetched_ahead(s3, tmp_path, monkeypatch, executor):
    fetched, add = set(), CacheAhead.add

    def count(self, owner, blocks):
        blocks = list(blocks)
        fetched.update(block.name for block in blocks)
        add(self, owner, blocks)

    monkeypatch.setattr(CacheAhead, "add", count)
    url = merged(s3, "ahead", [200] * 4)
    data = sw.tar(url, storage=s3.unhedged, cache=tmp_path / "cache")
    check_epoch(loader(data, batch_size=100, **executor), 800)
    # The first one is read at once.
    assert len(fetched) >= 3


def requests_of(s3: S3Server, prefix: str) -> list[tuple[str, str]]:
    return [
        (seen["method"], seen["path"].rpartition("/")[2])
        for seen in s3.requests()
        if f"/{prefix}/" in seen["path"]
    ]


def test_opening_is_one_request_and_a_shard_is_looked_at_when_it_is_read(s3, counted):
    url = merged(s3, "one")
    before = len(requests_of(s3, "one"))
    counted()
    data = sw.tar(url, storage=s3.unhedged)
    batches = loader(data, shuffle="window", num_threads=0)
    assert (len(data), len(batches), len(data.fingerprint)) == (15, 1, 16)
    assert counted()["requests"] == 1
    assert requests_of(s3, "one")[before:] == [("GET", "train.swm")]
    data[0]
    touched = {name for _, name in requests_of(s3, "one")[before + 1 :]}
    assert touched <= {"000.tar", "000.tar.swi"}
    check_epoch(batches, 15)


def test_workers_and_copies_read_the_manifest_of_this_machine(s3, user_cache):
    url = merged(s3, "workers")
    data = sw.tar(url, storage=s3.unhedged)
    before = requests_of(s3, "workers").count(("GET", "train.swm"))
    travelling = pickle.dumps(loader(data, num_workers=2))
    assert len(travelling) < 20_000
    with pickle.loads(travelling) as copy:
        check_epoch(copy, 15)
    assert requests_of(s3, "workers").count(("GET", "train.swm")) == before
    # Without the copy it is read again, and must be the same.
    for path in (user_cache / "shardwise" / "manifests").glob("*.swm"):
        path.unlink()
    assert len(list(pickle.loads(pickle.dumps(data)))) == 15


def test_a_manifest_that_was_replaced_is_refused_by_a_copy(s3, user_cache):
    url = merged(s3, "replaced")
    travelling = pickle.dumps(sw.tar(url, storage=s3.unhedged))
    for path in (user_cache / "shardwise" / "manifests").glob("*.swm"):
        path.unlink()
    urls = put_indexed_shards(s3, "replaced", [5, 6])
    options = StorageOptions(**s3.unhedged)
    merge_indexes(url, urls, store=IndexStore(options=options))
    with pytest.raises(StaleIndexError, match="the manifest was replaced while it was in use"):
        pickle.loads(travelling)[0]


def test_a_shard_that_was_replaced_in_the_store_is_an_error(s3):
    url = merged(s3, "stale")
    replace_object(s3, s3.url("stale/001.tar"), numbered_tar(100, 6, 1000))
    data = sw.tar(url, storage=s3.unhedged)
    data[0]
    with pytest.raises(StaleIndexError, match=r"manifest .* lists another ETag than there is"):
        data[7]
    with pytest.raises(StaleIndexError, match="not the one that the manifest"):
        sw.tar(url, storage=s3.unhedged, check="all").manifest


@pytest.fixture(params=["local", "web", "s3"])
def place(request, tmp_path):
    """Where a dataset lies: its URL, what writes or removes (None) a file there, and settings."""
    folder = tmp_path / "data"
    folder.mkdir()

    def write(name: str, data: bytes | None) -> None:
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)

    if request.param == "local":
        yield str(folder), write, None
    elif request.param == "web":
        with nginx(folder) as server:
            yield server.url, write, None
    else:
        s3 = request.getfixturevalue("s3")

        def put(name: str, data: bytes | None) -> None:
            if data is None:
                s3.request("DELETE", f"manifests/{name}")
            else:
                s3.put(f"manifests/{name}", data)

        yield s3.url("manifests"), put, s3.config


def test_what_is_wrong_with_a_dataset_is_an_error_and_no_short_epoch(place, tmp_path, user_cache):
    url, write, storage = place
    for name, first in (("sound", 0), ("other", 1000)):
        pattern = f"{tmp_path}/{name}/train-{{shard:03d}}.tar"
        with sw.TarWriter(pattern, max_samples=5, manifest=True) as writer:
            for number in range(first, first + 15):
                writer.write({"__key__": f"{number:05d}", "bin": b"x" * 100})
    sound, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("sound", "other")
    )
    for name, data in sound.items():
        write(name, data)
    manifest = sound["train.swm"]
    write("cut.swm", manifest[:-30])
    write("page.swm", b"<html>Sign in</html>")
    write("empty.swm", b"")
    write("other.swm", other["train.swm"])
    for name in ("cut.swm", "page.swm"):
        with pytest.raises(DataError, match=rf"can't be used: .*index --merge .*{name} URLS"):
            sw.tar(f"{url}/{name}", storage=storage)
    with pytest.raises(DataError, match=r"the file is empty \(0 bytes\)"):
        sw.tar(f"{url}/empty.swm", storage=storage)
    with pytest.raises(MissingShardError, match=r"gone\.swm"):
        sw.tar(f"{url}/gone.swm", storage=storage)

    def epoch(name: str, **options) -> list[int]:
        shutil.rmtree(user_cache, ignore_errors=True)
        data = sw.tar(f"{url}/{name}", storage=storage)
        with loader(data, batch_size=4, **options) as batches:
            return [index for batch in batches for index in batch["__index__"].tolist()]

    def refused(error: type[DataError], name: str, match: str) -> None:
        for options in ({"num_threads": 0}, {"num_threads": 2, "shuffle": True}):
            with pytest.raises(error, match=match):
                epoch(name, **options)
        with pytest.raises(error, match=match):
            sw.tar(f"{url}/{name}", storage=storage, check="all")

    assert epoch("train.swm") == list(range(15))
    refused(StaleIndexError, "other.swm", "not the one that the manifest .* it lists 5 samples in")
    write("train-001.tar", other["train-001.tar"])
    refused(StaleIndexError, "train.swm", "its index is of another shard than there is")
    write("train-001.tar.swi", other["train-001.tar.swi"])
    refused(StaleIndexError, "train.swm", "not the one that the manifest .* it lists 5 samples in")
    write("train-001.tar", sound["train-001.tar"][:1024])
    refused(StaleIndexError, "train.swm", "it lists [0-9,]+ bytes, there are 1,024 bytes")
    write("train-001.tar", None)
    refused(MissingShardError, "train.swm", "lists this shard, and it is not there")


def test_a_signature_is_not_stored_and_shards_are_found_beside_the_manifest(tmp_path, caplog):
    (tmp_path / "web").mkdir()
    for number, size in enumerate(SIZES):
        data = numbered_tar(sum(SIZES[:number]), size, 1000)
        (tmp_path / "web" / f"{number:03d}.tar").write_bytes(data)
    with nginx(tmp_path / "web") as server:
        urls = [f"{server.url}/00{number}.tar?sig=secret" for number in range(3)]
        build_indexes(urls)
        made = tmp_path / "train.swm"
        with caplog.at_level(logging.WARNING):
            merge_indexes(str(made), urls, store=IndexStore())
        assert "the queries of 3 URLs are not kept" in caplog.text
        assert b"secret" not in made.read_bytes()
        check_epoch(loader(sw.tar(made)), 15)
        plain = [f"{server.url}/00{number}.tar" for number in range(3)]
        assert sw.tar(made).fingerprint == sw.tar(plain).fingerprint
        twice = [urls[0], urls[0].replace("sig=secret", "sig=other")]
        with pytest.raises(ValueError, match="named twice, with different queries") as caught:
            len(sw.tar(twice))
        assert "sig=" not in str(caught.value)
        # A manifest that is signed itself.
        (tmp_path / "web" / "train.swm").write_bytes(made.read_bytes())
        check_epoch(loader(sw.tar(f"{server.url}/train.swm?sig=secret")), 15)
