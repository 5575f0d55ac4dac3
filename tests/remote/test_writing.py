"""Shards and indexes go into stores whole, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.storage import StorageOptions
from shardwise.storage.write import upload
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import S3Server, nginx


def keys(s3: S3Server, prefix: str) -> list[str]:
    body = s3.request("GET", "").expect(200).body.decode()
    found = [part.partition("</Key>")[0] for part in body.split("<Key>")[1:]]
    return sorted(key for key in found if key.startswith(prefix))


def write(url: str, num: int, **options: object) -> sw.TarWriter:
    with sw.TarWriter(url, **options) as writer:  # type: ignore[arg-type]
        for i in range(num):
            writer.write({"__key__": f"{i:04d}", "bin": bytes([i]) * 700, "cls": i})
    return writer


def test_shards_and_their_indexes_are_written_and_read(s3, tmp_path):
    pattern = s3.url("new/{shard:03d}.tar")
    writer = write(pattern, 10, max_samples=4, storage=s3.config, digests=True)
    assert writer.shards == [s3.url(f"new/{n:03d}.tar") for n in range(3)]
    assert keys(s3, "new/") == [f"new/{n:03d}.tar{x}" for n in range(3) for x in ("", ".swi")]
    data = sw.tar(s3.url("new/*.tar"), storage=s3.config)
    assert [int(sample["cls"]) for sample in data] == list(range(10))
    assert data.source.shards.has_digests
    # The same bytes as in files.
    local = write(str(tmp_path / "{shard:03d}.tar"), 10, max_samples=4)
    for url, path in zip(writer.shards, local.shards, strict=True):
        key = url.removeprefix(s3.url(""))
        assert s3.request("GET", key).expect(200).body == Path(path).read_bytes()


def test_what_exists_is_kept_unless_it_is_to_be_replaced(s3):
    url = s3.url("kept/000.tar")
    write(url, 2, storage=s3.config)
    with pytest.raises(FileExistsError, match="exists already"):
        write(url, 3, storage=s3.config)
    assert len(sw.tar(url, storage=s3.config)) == 2
    write(url, 3, storage=s3.config, overwrite=True)
    assert len(sw.tar(url, storage=s3.config)) == 3


def test_an_exception_leaves_nothing_in_the_store_and_no_temporary_file(s3, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    writer = sw.TarWriter(s3.url("broken/{shard}.tar"), max_samples=2, storage=s3.config)
    with pytest.raises(KeyboardInterrupt), writer:
        for i in range(3):
            writer.write({"__key__": f"{i}", "cls": i})
        raise KeyboardInterrupt
    assert keys(s3, "broken/") == ["broken/0.tar", "broken/0.tar.swi"]
    assert not list((tmp_path / "temporary").iterdir())


def test_large_objects_go_up_in_parts_and_appear_whole(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.extensions.remote.stores.obstore_client._WHOLE_BYTES", 20 << 20)
    data = np.random.default_rng(0).bytes(30 << 20)
    (tmp_path / "large").write_bytes(data)
    upload(s3.url("parts/large"), tmp_path / "large", options=StorageOptions(config=s3.config))
    methods = [r["method"] for r in s3.requests() if "/parts/large" in r["path"]]
    assert methods.count("PUT") >= 4
    stored = s3.request("GET", "parts/large").expect(200).body
    assert hashlib.sha256(stored).digest() == hashlib.sha256(data).digest()


def test_uploads_are_tried_again(s3, tmp_path):
    (tmp_path / "large").write_bytes(data := np.random.default_rng(1).bytes(20 << 20))
    with FaultProxy(s3.endpoint, seed=3, error_share=0.15, methods=("PUT", "POST")) as proxy:
        options = StorageOptions(config=s3.behind(proxy.url).config, max_attempts=20)
        upload(s3.url("again/large"), tmp_path / "large", options=options)
        for number in range(20):
            upload(s3.url(f"again/{number}"), b"small", options=options)
        assert proxy.counts()["error"] > 0
    assert s3.request("GET", "again/large").body == data


def test_a_store_that_refuses_is_an_error_that_says_so(s3, tmp_path):
    with pytest.raises(sw.StorageError, match=r"can't write 's3://gone/000\.tar'.*404"):
        write("s3://gone/000.tar", 2, storage=s3.config, overwrite=True)
    (tmp_path / "web").mkdir()
    with nginx(tmp_path / "web") as server, pytest.raises(sw.StorageError, match="405"):
        write(f"{server.url}/000.tar", 2)
    with pytest.raises(sw.StorageError, match="hub"):
        upload("hf://datasets/a/b/c.tar", b"")
